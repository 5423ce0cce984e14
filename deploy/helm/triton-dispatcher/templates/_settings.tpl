{{/* A setting's text. Numbers of a values file are floats: 1048576 would be written 1.048576e+06. */}}
{{- define "text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* A setting that the chart reads, or the server's default. */}}
{{- define "setting" -}}
{{- $value := get (index . 0).Values.settings (index . 1) -}}
{{- if kindIs "string" $value -}}{{ default (index . 2) (trim $value) }}{{- else -}}{{ include "text" $value }}{{- end -}}
{{- end -}}

{{/* A variable's text, from `settings` or `env`; nothing where it is in neither. */}}
{{- define "given" -}}
{{- $name := index . 1 -}}
{{- $text := include "setting" (list (index . 0) $name "") -}}
{{- range (index . 0).Values.env -}}
{{- if eq .name $name -}}{{- $text = ternary "in a Secret or the like" (get . "value" | toString | trim) (hasKey . "valueFrom") -}}{{- end -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{- define "port" -}}{{ include "setting" (list . "SAGEMAKER_BIND_TO_PORT" "8080") }}{{- end -}}
{{- define "stop-seconds" -}}{{ include "setting" (list . "SERVE_STOP_TIMEOUT" "27") | float64 | ceil | int }}{{- end -}}

{{- define "start-seconds" -}}
{{- $start := include "setting" (list . "SERVE_START_TIMEOUT" "480") | float64 | ceil | int -}}
{{- $download := ternary (int .Values.models.s3.downloadSeconds) 0 (eq .Values.models.source "s3") -}}
{{- default (add $start 60 $download) (int .Values.probes.startSeconds) -}}
{{- end -}}

{{- define "environment" -}}
{{- range $name, $value := include "derived-settings" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ include "text" $value | quote }}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Triton's own port, where a setting opens it: a line with its name in the Service and its number. */}}
{{- define "triton-ports" -}}
{{- with include "setting" (list . "TRITON_PUBLIC_GRPC_PORT" "") }}
triton-grpc: {{ . }}
{{- end -}}
{{- end -}}

{{- define "has-keys" -}}
{{- if or .Values.apiKeys.secret .Values.apiKeys.lines -}}true{{- end -}}
{{- end -}}

{{- define "has-tls" -}}
{{- if or .Values.tls.secret (include "given" (list . "TLS_CERTIFICATE")) -}}true{{- end -}}
{{- end -}}

{{- define "uses-s3" -}}
{{- $named := include "given" (list . "MODEL_REPOSITORY") | contains "s3://" -}}
{{- if or (eq .Values.models.source "s3") $named (include "given" (list . "S3_BUCKET_NAME")) (include "given" (list . "S3_ALLOWED_INPUTS")) -}}true{{- end -}}
{{- end -}}

{{/* What follows from other values; `settings` may not contradict it. */}}
{{- define "derived-settings" -}}
{{- with .Values.models -}}
{{- if eq .source "s3" }}
MODEL_REPOSITORY: {{ join "," .s3.places | quote }}
MODEL_CACHE: /cache
{{- else if ne .source "built-in" }}
MODEL_REPOSITORY: {{ printf "/models/%s" (trimAll "/" .folder) | trimSuffix "/" | quote }}
{{- end }}
{{- end }}
{{- if include "has-keys" . }}
API_KEYS_FILE: {{ printf "/keys/%s" (ternary .Values.apiKeys.key "keys" (ne .Values.apiKeys.secret "")) | quote }}
{{- end }}
{{- with .Values.tls }}
{{- if .secret }}
TLS_CERTIFICATE: /tls/tls.crt
TLS_KEY: /tls/tls.key
{{- if .clientCa }}
TLS_CLIENT_CA: /tls/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
