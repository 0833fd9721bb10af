package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
)

// program is where the wrapper is in its image.
const program = "/usr/local/bin/application-grid-wrapper"

// Place is a wrapper's pod on a node.
type Place struct {
	Namespace, Pod, Container string
	// Image and PullSecrets are the pod's.
	Image       string
	PullSecrets []corev1.LocalObjectReference
}

// Exec is a Runner that asks in the wrappers' pods, in the node's network. They lack the capability to ask the kernel,
// so it asks by HTTP and knows by the answers who gave them.
type Exec struct {
	// Command runs a command in a pod and returns what it prints: CommandIn.
	Command func(ctx context.Context, in Place, command []string) ([]byte, error)
	// Places are the wrappers' pods by node.
	Places map[string]Place
	Probe  Probe
	// Path is that of the URL, with its slash.
	Path string
}

// Run implements Runner.
func (r *Exec) Run(ctx context.Context, node string, plan *Plan) (probe.Result, error) {
	place, ok := r.Places[node]
	if !ok {
		return probe.Result{}, errors.New("no pod of the wrapper is there to ask in")
	}
	out, err := r.Command(ctx, place, []string{
		program, "probe", "--answers", "http://" + plan.Target.String() + r.Path,
		"--requests=" + strconv.Itoa(r.Probe.Requests), "--timeout=" + r.Probe.Timeout.String(),
	})
	var result probe.Result
	if decodeErr := json.Unmarshal(out, &result); decodeErr == nil {
		return result, nil
	}
	if err == nil {
		err = fmt.Errorf("the probe printed %q", out)
	}
	return probe.Result{}, fmt.Errorf("asking in pod %s/%s: %w", place.Namespace, place.Pod, err)
}

// CommandIn runs commands in pods, as kubectl exec does.
func CommandIn(config *rest.Config) (func(ctx context.Context, in Place, command []string) ([]byte, error), error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	api, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return func(ctx context.Context, in Place, command []string) ([]byte, error) {
		request := api.Post().Resource("pods").Namespace(in.Namespace).Name(in.Pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: in.Container, Command: command, Stdout: true,
				Stderr: true},
				scheme.ParameterCodec)
		executor, err := executorFor(config, request.URL())
		if err != nil {
			return nil, err
		}
		var out, problems bytes.Buffer
		if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdout: &out,
			Stderr: &problems,
		}); err != nil {
			return out.Bytes(), fmt.Errorf("%w %s", err, strings.TrimSpace(problems.String()))
		}
		return out.Bytes(), nil
	}, nil
}

// executorFor asks by WebSocket, and as API servers before 1.30 want it if that is refused.
func executorFor(config *rest.Config, to *url.URL) (remotecommand.Executor, error) {
	first, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, to.String())
	if err != nil {
		return nil, err
	}
	second, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, to)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(first, second, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}
