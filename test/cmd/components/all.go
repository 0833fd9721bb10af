//go:build !demo

package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/application-grid/application-grid/test/k3s/standin"
)

func init() {
	components["kubeadm"] = runKubeadm
	components["kubelet"] = func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) }
	components["k3s"] = standin.Run
}

func runControllerManager() int { return cli.Run(controllermanager.NewControllerManagerCommand()) }

func runKubectl() int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) // a bad -v is reported by the flag parsing below
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func runKubeadm() int {
	if err := kubeadm.Run(); err != nil { // it has reported it
		return 1
	}
	return 0
}
