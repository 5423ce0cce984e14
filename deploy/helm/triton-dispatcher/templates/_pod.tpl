{{- define "locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{/*
Start and live ask whether a web worker answers at all, which it does while models load, fail or are busy. Only ready
asks /ping: a pod without a required model gets no requests, and is not killed. `serve` repairs its programs by itself
within seconds and ends where it cannot, so the kubelet kills only what was silent for a minute.
*/}}
{{- define "probes" -}}
{{- $scheme := ternary ", scheme: HTTPS" "" (eq (include "has-tls" .) "true") -}}
startupProbe:
  httpGet: {path: /v2/health/live, port: http{{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add (include "start-seconds" .) 4) 5 }}
readinessProbe:
  httpGet: {path: /ping, port: http{{ $scheme }}}
  periodSeconds: 3
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /v2/health/live, port: http{{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "scheduling" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.tolerations .Values.gpu.count }}
tolerations:
  {{- if .Values.gpu.count }}
  - {key: {{ .Values.gpu.resource }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- $spread := .Values.topologySpread }}
{{- if or (ne $spread.zone "off") (ne $spread.node "off") }}
topologySpreadConstraints:
  {{- range $what, $key := dict "zone" "topology.kubernetes.io/zone" "node" "kubernetes.io/hostname" }}
  {{- if ne (get $spread $what) "off" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: {{ get $spread $what }}
    labelSelector:
      matchLabels:
        {{- include "selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
