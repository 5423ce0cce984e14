{{/* The bytes of a quantity, such as 2Gi. */}}
{{- define "bytes" -}}
{{- $number := regexFind "^[0-9.]+" . -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number .) | float64) | int64 -}}
{{- end -}}

{{/* What no schema can say: a sentence for each value that does not go with another. */}}
{{- define "checks" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" (include "fullname" .)) -}}
{{- fail (printf "the Service would be called %q; expected: a-z, 0-9 and -, a letter first; set fullnameOverride, or name the release so" (include "fullname" .)) -}}
{{- end -}}
{{- $models := .Values.models -}}
{{- $derived := include "derived-settings" . | fromYaml -}}
{{- range $name, $_ := $derived -}}
{{- if hasKey $.Values.settings $name -}}
{{- fail (printf "settings.%s is set, but models, apiKeys and tls decide it; leave it out of settings" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $models.source "s3") (not $models.s3.places) -}}
{{- fail "models.source is s3; expected: models.s3.places, a list of s3://BUCKET/PREFIX" -}}
{{- end -}}
{{- if and (eq $models.source "volume") (not $models.volume.claim) -}}
{{- fail "models.source is volume; expected: models.volume.claim, the name of a PersistentVolumeClaim" -}}
{{- end -}}
{{- if and (eq $models.source "image") (not $models.image.name) -}}
{{- fail "models.source is image; expected: models.image.name, REGISTRY/NAME:TAG of an image with models" -}}
{{- end -}}
{{- if and .Values.apiKeys.secret .Values.apiKeys.lines -}}
{{- fail "apiKeys.secret and apiKeys.lines are both set; expected: one of them" -}}
{{- end -}}
{{- if and (include "has-keys" .) .Values.serviceMonitor.enabled (not .Values.serviceMonitor.apiKeySecret) -}}
{{- fail "apiKeys are set, so /metrics needs a key; expected: serviceMonitor.apiKeySecret, a Secret with one" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.egress) -}}
{{- range $name := list "OTEL_EXPORTER_OTLP_ENDPOINT" "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" "TRITON_URL" "TRITON_HTTP_URL" "AWS_ENDPOINT_URL_S3" -}}
{{- $address := include "given" (list $ $name) -}}
{{- $usual := ternary "443" (ternary "80" "4318" (hasPrefix "http://" $address)) (hasPrefix "https://" $address) -}}
{{- $port := regexFind ":[0-9]+(/|,|$)" $address | trimAll ":/," | default $usual -}}
{{- $open := and (eq $port "443") (or (eq $name "AWS_ENDPOINT_URL_S3") (include "uses-s3" $)) -}}
{{- if and $address (not $open) -}}
{{- fail (printf "%s is %s, which networkPolicy does not let the pods reach; expected: networkPolicy.egress, such as [{ports: [{port: %s, protocol: TCP}]}]" $name $address $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is larger than autoscaling.maxReplicas; expected: at most as large" -}}
{{- end -}}
{{- $memory := (.Values.resources.limits).memory -}}
{{- if and (eq .Values.tmp.medium "Memory") $memory -}}
{{- if gt (add (include "bytes" .Values.tmp.size) (include "bytes" .Values.sharedMemory)) (include "bytes" (toString $memory) | int64) -}}
{{- fail (printf "tmp.medium is Memory, and tmp.size (%s) and sharedMemory (%s) are more than resources.limits.memory (%s); expected: less, as models need memory too" .Values.tmp.size .Values.sharedMemory $memory) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.enabled is true; expected: ingress.hosts, a list of host names" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.gateways) -}}
{{- fail "httpRoute.enabled is true; expected: httpRoute.gateways, a list of Gateways, each with a name" -}}
{{- end -}}
{{- if and (eq (toString .Values.strategy.maxSurge) "0") (eq (toString .Values.strategy.maxUnavailable) "0") -}}
{{- fail "strategy.maxSurge and strategy.maxUnavailable are both 0; expected: one of them above 0, else nothing can be replaced" -}}
{{- end -}}
{{- end -}}
