package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
)

// measureShare takes the memory of a wrapper behind a hub, with the share of one node of 10,000: 20,000 Services with
// 50 endpoints each, of which a thousand have one in this node's unit of ten nodes. What the share has not, a wrapper
// never sees, so it is not in this cluster either.
func measureShare(ctx context.Context, o options) (err error) {
	const services, every, unitNodes = 20_000, 20, 10
	unit := fleet{nodes: unitNodes, units: 1, services: services, endpoints: 1}
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, Wrapper: o.wrapper, Hub: o.hub, NoKwok: true, NoScheduler: true, APIViewOnly: true,
		Progress: os.Stderr,
		Nodes:    []cluster.NodeSpec{unit.viewer(hubRequire)},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	c.ControllerManager.Kill()
	fmt.Fprintf(os.Stderr, "loading %d Services and %d slices\n", services, services/every)
	config := rest.CopyConfig(c.RESTConfig())
	config.ContentType, config.WarningHandler = protobufType, rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := (fleet{nodes: unitNodes, units: 1}).load(ctx, config); err != nil {
		return err
	}
	err = parallel(ctx, services, func(ctx context.Context, i int) error {
		if i%every == 0 {
			return unit.createService(ctx, client, i)
		}
		_, err := client.CoreV1().Services(namespace).Create(ctx, unit.service(i), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	node, err := c.Node("hub-" + hubRequire)
	if err != nil {
		return err
	}
	if _, err := restart(ctx, node.Wrapper); err != nil {
		return err
	}
	var t table
	add := func(when string) error {
		used, err := memory(node.Wrapper.PID())
		t.add("resident memory "+when, "", used, "")
		return err
	}
	if err := add("after the sync"); err != nil {
		return err
	}
	viaWrapper, err := newSide("wrapper", node.WrapperConfig(cluster.RoleKubeProxy), true)
	if err != nil {
		return err
	}
	for range o.lists {
		_, size, err := viaWrapper.list(ctx, protobufType)
		if err != nil {
			return err
		}
		if size == 0 {
			return errors.New("the wrapper lists nothing")
		}
	}
	if err := add("after lists of the slices"); err != nil {
		return err
	}
	fmt.Printf("\na share of %d Services and %d slices, with %d nodes\n\n", services, services/every, unitNodes)
	t.print(os.Stdout)
	return nil
}
