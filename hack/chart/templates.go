package main

import (
	"fmt"
	"strings"
)

// copies are the manifests that are files of the chart as they are. The alerts' own {{ }} are Prometheus'.
var copies = map[string]string{
	"monitoring/alerts.yaml":       "files/alerts.yaml",
	"monitoring/dashboard.json":    "files/dashboard.json",
	"kubeadm/kube-proxy-away.yaml": "files/kube-proxy-away.yaml",
}

// The kinds of clusters, as conditions. With systemd the nodes' programs are no pods.
const (
	asPods     = `ne .Values.distribution "systemd"`
	onKubeadm  = `eq .Values.distribution "kubeadm"`
	ownFile    = `has .Values.distribution (list "k3s" "plain")`
	monitored  = `.Values.monitoring.podMonitor.enabled`
	withCilium = `.Values.cilium.enabled`
	loopback   = `{host: localhost, port: 51007, `
	noLoopback = `{ {{- if not .Values.monitoring.podMonitor.enabled }}host: localhost, {{ end }}port: 51007, `
)

// templates are all that is made of manifests.
var templates = []template{
	{name: "controller.yaml", parts: []part{
		{manifest: "application-grid-controller/rbac.yaml", replaced: []replacement{
			namespaces(8),
			// A RoleBinding for each namespace; without any, one ClusterRoleBinding.
			{place: object("ClusterRoleBinding", "controller"), by: "{{- range $namespace := default (list \"\") " +
				".Values.controller.namespaces }}\n{{- with $ }}\n" + strings.Replace(
				object("ClusterRoleBinding", "controller"), "ClusterRoleBinding",
				"{{ if $namespace }}RoleBinding{{ else }}ClusterRoleBinding{{ end }}", 1) +
				"  {{- with $namespace }}\n  namespace: {{ . }}\n  {{- end }}\n"},
			{
				place: object("ClusterRole", "controller-nodes"),
				by:    "{{- end }}\n{{- end }}\n" + object("ClusterRole", "controller-nodes"),
			},
			{
				place: object("ClusterRole", "controller-crds"),
				by:    "{{- if .Values.controller.manageCRDs }}\n" + object("ClusterRole", "controller-crds"),
			},
			{place: leaderRole, by: "{{- end }}\n" + leaderRole},
		}},
		{manifest: "application-grid-controller/deployment.yaml", replaced: []replacement{
			namespaces(2),
			{place: "  replicas: 2\n", by: "  replicas: {{ .Values.controller.replicas }}\n"},
			pullSecrets("application-grid-controller"), image("application-grid-controller"),
			extraArgs("--leader-elect=true", "controller"), memoryLimit("320MiB", "controller"),
			{
				place: "            {{- range .Values.controller.args }}\n",
				by: `            {{- with .Values.controller.namespaces }}
            - --namespaces={{ join "," . }}
            {{- end }}
            {{- if eq .Values.distribution "kubeadm" }}
            - --move-kube-proxy
            {{- end }}
            {{- if not .Values.controller.manageCRDs }}
            - --manage-crds=off
            {{- end }}
            {{- range .Values.controller.args }}
`,
			},
			{place: "      tolerations:\n", by: `      {{- with .Values.controller.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      tolerations:
`},
			{place: "effect: NoSchedule}\n", by: `effect: NoSchedule}
        {{- with .Values.controller.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
`},
			resources("controller", "requests: {cpu: 50m, memory: 128Mi}", "limits: {memory: 384Mi}"),
			// Of one replica none could be drained.
			{
				place: "  minAvailable: 1\n",
				by:    "  minAvailable: {{ if gt (int .Values.controller.replicas) 1 }}1{{ else }}0{{ end }}\n",
			},
		}},
	}},
	{name: "wrapper.yaml", parts: []part{
		{manifest: "application-grid-wrapper/rbac.yaml", replaced: []replacement{namespaces(2), {
			place: followsAll,
			by: "  {{- if .Values.hub.require }}\n" + followsShare + "  {{- else }}\n" + followsAll +
				"  {{- end }}\n",
		}}},
		{manifest: "application-grid-wrapper/daemonset.yaml", when: asPods, replaced: []replacement{
			namespaces(1), maxUnavailable("wrapper"), pullSecrets("application-grid-wrapper"),
			image("application-grid-wrapper"),
			{
				place: "          args:\n",
				by: "          args:\n            {{- if .Values.hub.require }}\n            - --hub\n" +
					"            {{- end }}\n" + exchanged("            - --site-exchange=on\n"+
					"            - --site-exchange-key-file=/etc/application-grid-site-exchange/keys\n") +
					"            {{- if " + withCilium +
					" }}\n            - --insecure=false\n            {{- end }}\n",
			},
			overTLS("/readyz"), overTLS("/livez"),
			behind("            - {name: state, mountPath: /var/lib/application-grid-wrapper}\n",
				"            - {name: site-exchange, mountPath: /etc/application-grid-site-exchange, "+
					"readOnly: true}\n"),
			behind("          emptyDir: {sizeLimit: 256Mi}\n", "        - name: site-exchange\n          secret:\n"+
				"            secretName: {{ .Values.siteExchange.secretName }}\n            defaultMode: 0440\n"+
				"            optional: true\n"),
			extraArgs("--kubeconfig=/etc/application-grid-wrapper/kubeconfig.conf", "wrapper",
				"--metrics-bind-address=[$(HOST_IP)]:51008"),
			memoryLimit("90MiB", "wrapper", metricsPort(51008)),
			resources("wrapper", "requests: {cpu: 20m, memory: 48Mi}", "limits: {memory: 100Mi}"),
			{place: "            name: application-grid-wrapper\n            items:",
				by: "            name: {{ if " + onKubeadm +
					" }}kube-proxy{{ else }}application-grid-wrapper{{ end }}\n            items:"},
		}},
		{manifest: "k3s/kubeconfig.conf", when: `eq .Values.distribution "k3s"`, before: kubeconfigMap, indent: 4},
		{manifest: "application-grid-wrapper/kubeconfig.conf", when: `eq .Values.distribution "plain"`,
			before: kubeconfigMap, indent: 4,
			replaced: []replacement{
				{place: "https://set-this-to-your-api-server.invalid:6443", by: "{{ .Values.wrapper.server }}"},
			}},
	}},
	{name: "daemon.yaml", parts: []part{
		{manifest: "statefulset-grid-daemon/rbac.yaml", replaced: []replacement{namespaces(2)}},
		{manifest: "statefulset-grid-daemon/daemonset.yaml", when: asPods, replaced: []replacement{
			namespaces(1), maxUnavailable("daemon"), pullSecrets("statefulset-grid-daemon"),
			image("statefulset-grid-daemon"),
			{
				place: "          args:\n", by: "          args:\n            {{- if " + withCilium + " }}\n" +
					"            - --kubeconfig=/etc/statefulset-grid-daemon/kubeconfig.conf\n            {{- end }}\n",
			},
			{
				place: "              mountPath: /data/edge\n", by: "              mountPath: /data/edge\n" +
					"            {{- if " + withCilium + " }}\n            - {name: kubeconfig, " +
					"mountPath: /etc/statefulset-grid-daemon, readOnly: true}\n            {{- end }}\n",
			},
			{
				place: "            type: DirectoryOrCreate\n", by: "            type: DirectoryOrCreate\n" +
					"        {{- if " + withCilium + " }}\n        - name: kubeconfig\n          projected:\n" +
					"            sources:\n              - configMap: {name: statefulset-grid-daemon}\n" +
					"              - configMap: {name: kube-root-ca.crt}\n        {{- end }}\n",
			},
			extraArgs("--hostpath=/data/edge/hosts", "daemon", "--bind-address=[$(HOST_IP)]:51007"),
			{
				place: "fieldRef: {fieldPath: spec.nodeName}}\n",
				by:    "fieldRef: {fieldPath: spec.nodeName}}\n" + metricsPort(51007),
			},
			{place: loopback, by: noLoopback, times: 2},
			resources("daemon", "requests: {cpu: 10m, memory: 40Mi}", "limits: {memory: 64Mi}"),
		}},
	}},
	{name: "hub.yaml", when: ".Values.hub.enabled", parts: []part{
		{manifest: "application-grid-hub/rbac.yaml", replaced: []replacement{namespaces(8)}},
		{manifest: "application-grid-hub/deployment.yaml", replaced: []replacement{
			namespaces(4),
			{
				place: "=kube-system/application-grid-hub", by: "={{ .Release.Namespace }}/application-grid-hub",
				times: 2,
			},
			{
				place: "  replicas: 2\n",
				by: "  {{- if not .Values.hub.autoscaling }}\n  replicas: {{ .Values.hub.replicas }}\n  {{- " +
					"end }}\n",
			},
			pullSecrets("application-grid-hub"), image("application-grid-hub"),
			extraArgs("--metrics-bind-address=:8081", "hub"), memoryLimit("1280MiB", "hub"),
			resources("hub", "requests: {cpu: 100m, memory: 256Mi}", "limits: {memory: 1536Mi}"),
			{
				place: "  minAvailable: 1\n",
				by:    "  minAvailable: {{ if gt (int .Values.hub.replicas) 1 }}1{{ else }}0{{ end }}\n",
			},
		}},
		{manifest: "application-grid-hub/apiservice.yaml", replaced: []replacement{
			{place: "namespace: kube-system,", by: "namespace: {{ .Release.Namespace }},"},
		}},
		{
			manifest: "hub-autoscaling/autoscaler.yaml", when: ".Values.hub.autoscaling",
			replaced: []replacement{namespaces(1)},
		},
	}},
	{name: "flow-control.yaml", when: ".Values.flowControl.enabled", parts: []part{
		{manifest: "flow-control/flowcontrol.yaml", replaced: []replacement{
			{place: "{namespace: kube-system,", by: "{namespace: {{ .Release.Namespace }},", times: 2},
		}},
	}},
	{name: "edge-node-policy.yaml", when: ".Values.edgeNodePolicy.enabled", parts: []part{
		{manifest: "edge-node-policy/policy.yaml", when: "not " + withCilium},
		{manifest: "edge-node-policy/removal.yaml", replaced: []replacement{
			{place: "metadata.name: kube-system}", by: "metadata.name: {{ .Release.Namespace }}}"},
		}},
		{manifest: "edge-node-policy/k3s.yaml"},
		{manifest: "cilium/policy.yaml", when: withCilium, replaced: []replacement{
			{place: "namespace: kube-system,", by: "namespace: {{ .Values.cilium.namespace }},"},
			{
				place: "CiliumNodeConfig kube-system/application-grid",
				by:    "CiliumNodeConfig {{ .Values.cilium.namespace }}/application-grid",
			},
		}},
		{manifest: "kubeadm/edge-nodes-policy.yaml", when: onKubeadm},
	}},
	{name: "cilium.yaml", when: withCilium, parts: []part{
		{manifest: "cilium/node-config.yaml", replaced: []replacement{{
			place: "namespace: kube-system # Cilium's own\n", by: "namespace: {{ .Values.cilium.namespace }}\n",
		}}},
		{manifest: "cilium/certificate-rbac.yaml", replaced: []replacement{namespaces(1)}},
		{manifest: "cilium/daemon-kubeconfig.yaml", replaced: []replacement{namespaces(1)}},
	}},
	{name: "approval-policy.yaml", when: ".Values.approvalPolicy.enabled", parts: []part{
		{manifest: "approval-policy/policy.yaml"},
	}},
	{name: "kube-proxy.yaml", when: onKubeadm, parts: []part{
		{manifest: "kubeadm/kube-proxy-edge.yaml", replaced: []replacement{
			namespaces(2), maxUnavailable("kubeProxy"), pullSecrets("kube-proxy"),
			{
				place: "image: registry.k8s.io/kube-proxy:v1.37.1",
				by:    `image: {{ include "application-grid.kubeProxyImage" . | quote }}`,
			},
		}},
		{manifest: "kubeadm/kube-proxy-move.yaml"},
		{manifest: "kubeadm/kube-proxy-policy.yaml", when: ".Values.kubeProxy.policy"},
	}},
	{name: "coredns.yaml", when: ".Values.coreDNS.enabled", parts: []part{
		{manifest: "coredns-edge/daemonset.yaml", replaced: []replacement{
			namespaces(1), maxUnavailable("coreDNS"), pullSecrets("coredns"),
			{
				place: "image: registry.k8s.io/coredns/coredns:v1.14.6",
				by:    `image: {{ include "application-grid.coreDNSImage" . | quote }}`,
			},
		}},
		{manifest: "coredns-edge/Corefile", before: corefileMap, indent: 4},
	}},
	{name: "podmonitor.yaml", when: monitored, parts: []part{
		{manifest: "monitoring/podmonitor.yaml", replaced: []replacement{
			namespaces(1),
			{place: "    # kube-prometheus-stack takes what has the name of its Helm release.\n    release: " +
				"kube-prometheus-stack\n",
				by: "    {{- with .Values.monitoring.podMonitor.labels }}\n    {{- toYaml . | nindent 4 }}\n    {{- " +
					"end }}\n"},
		}},
	}},
}

// leaderRole begins the controller's Role for the election of a leader.
const leaderRole = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n"

// object begins a document with an object of RBAC that has one of the program's names.
func object(kind, name string) string {
	const begin = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata:\n  name: application-grid:%s\n"
	return fmt.Sprintf(begin, kind, name)
}

// followsAll are the rules of a wrapper's role for following the cluster; followsShare, as manifests/hub-require has
// it, is what stays of them where it follows its share only.
const (
	followsAll = `  # What it follows: of nodes metadata only; Endpoints and
  # namespaces only once a client asks for them.
  - apiGroups: [""]
    resources: [nodes, services, endpoints, namespaces]
    verbs: [list, watch]
  - apiGroups: [discovery.k8s.io]
    resources: [endpointslices]
    verbs: [list, watch]
`
	followsShare = `  # A hub has neither Endpoints nor namespaces. The annotations of one
  # object may name the node's own API server, and a CoreDNS asks for namespaces.
  - apiGroups: [""]
    resources: [endpoints]
    resourceNames: [kubernetes]
    verbs: [list, watch]
  - apiGroups: [""]
    resources: [namespaces]
    verbs: [list, watch]
`
)

// exchanged is what is there where wrappers exchange facts, as manifests/site-exchange has it. It is indented as its
// first line is.
func exchanged(lines string) string {
	indent := lines[:len(lines)-len(strings.TrimLeft(lines, " "))]
	return indent + "{{- if .Values.siteExchange.enabled }}\n" + lines + indent + "{{- end }}\n"
}

// overTLS has the kubelet probe a path of the wrapper over TLS where manifests/cilium has the wrapper serve it.
func overTLS(path string) replacement {
	place := "port: 51006, path: " + path + "}"
	return replacement{place: place, by: strings.TrimSuffix(place, "}") +
		"{{ if " + withCilium + " }}, scheme: HTTPS{{ end }}}"}
}

// behind puts what is there where wrappers exchange facts behind a place.
func behind(place, lines string) replacement {
	return replacement{place: place, by: place + exchanged(lines)}
}

// kubeconfigMap and corefileMap are what makes an object of a kubeconfig and of a Corefile, as the kustomizations do.
var (
	kubeconfigMap = configMap("application-grid-wrapper", "wrapper", "kubeconfig.conf")
	corefileMap   = configMap("coredns-edge", "dns", "Corefile")
)

// configMap begins a ConfigMap with one key, whose text follows.
func configMap(name, component, key string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: ConfigMap
metadata:
  name: %[1]s
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: %[1]s
    app.kubernetes.io/component: %[2]s
    app.kubernetes.io/part-of: application-grid
data:
  %[3]s: |
`, name, component, key)
}

// namespaces puts the release's namespace in the place of kube-system.
func namespaces(times int) replacement {
	return replacement{"namespace: kube-system\n", "namespace: {{ .Release.Namespace }}\n", times}
}

func image(program string) replacement {
	const template = `          image: {{ include "application-grid.image" (list . %q) | quote }}
          {{- with .Values.image.pullPolicy }}
          imagePullPolicy: {{ . }}
          {{- end }}
`
	return replacement{
		place: fmt.Sprintf("          image: %s:latest # yours\n", program),
		by:    fmt.Sprintf(template, program),
	}
}

func pullSecrets(serviceAccount string) replacement {
	line := fmt.Sprintf("      serviceAccountName: %s\n", serviceAccount)
	return replacement{place: line, by: line + `      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
`}
}

// extraArgs puts arguments behind the last one: those that monitoring needs, and the values'.
func extraArgs(last, program string, whenMonitored ...string) replacement {
	var by strings.Builder
	line := fmt.Sprintf("            - %s\n", last)
	by.WriteString(line)
	for _, arg := range whenMonitored {
		fmt.Fprintf(&by, "            {{- if %s }}\n            - %q\n            {{- end }}\n", monitored, arg)
	}
	fmt.Fprintf(&by, `            {{- range .Values.%s.args }}
            - {{ . | quote }}
            {{- end }}
`, program)
	return replacement{place: line, by: by.String()}
}

// memoryLimit is Go's own, which belongs to the container's; what follows it goes along.
func memoryLimit(value, program string, after ...string) replacement {
	return replacement{
		place: fmt.Sprintf("            - {name: GOMEMLIMIT, value: %s}\n", value),
		by: fmt.Sprintf("            - {name: GOMEMLIMIT, value: {{ .Values.%s.goMemLimit }}}\n",
			program) + strings.Join(after, ""),
	}
}

// metricsPort is what follows a container's environment for metrics to be scraped from elsewhere.
func metricsPort(port int) string {
	return fmt.Sprintf(`            {{- if %s }}
            - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
          ports:
            - {name: metrics, containerPort: %d}
            {{- end }}
`, monitored, port)
}

func maxUnavailable(program string) replacement {
	return replacement{
		place: "rollingUpdate: {maxUnavailable: 10%}",
		by:    fmt.Sprintf("rollingUpdate: {maxUnavailable: {{ .Values.%s.maxUnavailable }}}", program),
	}
}

func resources(program, requests, limits string) replacement {
	return replacement{
		place: fmt.Sprintf("            %s\n            %s\n", requests, limits),
		by:    fmt.Sprintf("            {{- toYaml .Values.%s.resources | nindent 12 }}\n", program),
	}
}
