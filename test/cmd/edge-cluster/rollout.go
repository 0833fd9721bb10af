package main

import (
	"context"
	"fmt"

	"github.com/application-grid/application-grid/test/cluster"
)

// canary shows, as this step, a change that fails in its first wave and gets no further, and what mends it.
func (o *options) canary(ctx context.Context, c *cluster.Cluster, step int) error {
	const (
		waves  = `{"spec":{"progressDeadlineSeconds":5,"rollout":{"waves":[{"name":"canary","sites":{"names":["east"]}},{"name":"rest"}]}}}`
		broken = `{"spec":{"template":{"template":{"spec":{"nodeSelector":{"gpu":"yes"}}}}}}`
		mended = `{"spec":{"template":{"template":{"spec":{"nodeSelector":null}}}}}`
	)
	fmt.Printf("\n%d. A change in waves: %s asks for nodes that do not exist. The rollout halts at the canary, east\n\n",
		step, demoName)
	change := func(patch, phase string) error {
		fmt.Printf("   $ kubectl patch dg %s --type=merge -p '%s'\n", demoName, patch)
		if err := o.kubectl(ctx, c, "patch", "dg", demoName, "--type=merge", "-p", patch); err != nil {
			return err
		}
		return o.kubectl(ctx, c, "wait", "dg/"+demoName, "--for=jsonpath={.status.rollout.phase}="+phase,
			"--timeout="+demoDeadline.String())
	}
	if err := change(waves, "Complete"); err != nil {
		return err
	}
	if err := change(broken, "Halted"); err != nil {
		return err
	}
	if err := o.kubectl(ctx, c, "get", "dg", demoName, "-o",
		"jsonpath={.status.rollout.message}{\"\\n\"}"); err != nil {
		return err
	}
	if err := o.kubectl(ctx, c, "get", "deployments"); err != nil {
		return err
	}
	fmt.Println("\n   The other sites are unchanged, and the canary's old pods still serve. Repaired:")
	return change(mended, "Complete")
}
