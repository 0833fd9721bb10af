// Package standin is one process in the place of k3s, which no registry that the tests use has. It does with the real
// kubelet and the real kube-proxy what matters of k3s to a proxy between kube-proxy and kube-apiserver, and has none of
// its code:
//
//   - config.yaml, and the files of config.yaml.d after it, where "key+" appends to a list;
//   - a load balancer on 127.0.0.1:6444 of an agent; on a server kube-apiserver itself has that port, and 6443
//     leads to it;
//   - nothing of the agent starts before the server answers;
//   - kubeconfigs of the kubelet and of kube-proxy that are written at each start;
//   - kube-proxy-arg over the defaults, parsed by kube-proxy's own flags before anything starts;
//   - containerd as a child that ends with it, kubelet and kube-proxy side by side in the process, which ends
//     when one of
//     them ends;
//   - node-label and the annotation k3s.io/node-args, patched into the Node at each start.
//
// It lacks flannel, network policies, ServiceLB, Traefik, CoreDNS, the cloud provider, the tunnel, the load balancer's
// health checks, and sqlite: a server runs etcd and the control plane as children.
package standin
