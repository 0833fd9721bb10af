{{- /* The image of a program: (list $ "application-grid-wrapper") */}}
{{- define "application-grid.image" -}}
{{- $root := index . 0 -}}
{{- $image := $root.Values.image -}}
{{- $tag := $image.tag | default $root.Chart.AppVersion -}}
{{- if eq $tag "unreleased" -}}
{{- fail "image.tag has to be set, as this chart is that of a checkout and not of a release" -}}
{{- end -}}
{{- with $image.registry -}}{{ . }}/{{- end -}}{{ index . 1 }}:{{ $tag }}
{{- end -}}

{{- /* The image of kube-proxy-edge: that of the cluster's own kube-proxy, where the cluster can be asked. */}}
{{- define "application-grid.kubeProxyImage" -}}
{{- if .Values.kubeProxy.image -}}
{{- .Values.kubeProxy.image -}}
{{- else -}}
{{- $own := lookup "apps/v1" "DaemonSet" "kube-system" "kube-proxy" -}}
{{- if not $own -}}
{{- fail "kubeProxy.image has to be set: the cluster has no DaemonSet kube-system/kube-proxy, or it cannot be asked (helm template)" -}}
{{- end -}}
{{- (index $own.spec.template.spec.containers 0).image -}}
{{- end -}}
{{- end -}}

{{- /* The image of coredns-edge: that of the cluster's own CoreDNS, where the cluster can be asked. */}}
{{- define "application-grid.coreDNSImage" -}}
{{- if .Values.coreDNS.image -}}
{{- .Values.coreDNS.image -}}
{{- else -}}
{{- $own := lookup "apps/v1" "Deployment" "kube-system" "coredns" -}}
{{- if not $own -}}
{{- fail "coreDNS.image has to be set: the cluster has no Deployment kube-system/coredns, or it cannot be asked (helm template)" -}}
{{- end -}}
{{- (index $own.spec.template.spec.containers 0).image -}}
{{- end -}}
{{- end -}}
