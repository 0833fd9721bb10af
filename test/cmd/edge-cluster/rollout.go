package main

import (
	"context"
	"fmt"
)

// canary shows a change that fails in its first wave and gets no further, and what mends it.
func (d *demo) canary(ctx context.Context) error {
	const (
		waves  = `{"spec":{"progressDeadlineSeconds":5,"rollout":{"waves":[{"name":"canary","sites":{"names":["east"]}},{"name":"rest"}]}}}`
		broken = `{"spec":{"template":{"template":{"spec":{"nodeSelector":{"gpu":"yes"}}}}}}`
		mended = `{"spec":{"template":{"template":{"spec":{"nodeSelector":null}}}}}`
	)
	fmt.Printf("\n7. A change in waves: %s asks for nodes that do not exist. The rollout halts at the canary, east\n\n", demoName)
	change := func(patch, phase string) error {
		fmt.Printf("   $ kubectl patch dg %s --type=merge -p '%s'\n", demoName, patch)
		if err := d.kubectl(ctx, "patch", "dg", demoName, "--type=merge", "-p", patch); err != nil {
			return err
		}
		return d.kubectl(ctx, "wait", "dg/"+demoName, "--for=jsonpath={.status.rollout.phase}="+phase,
			"--timeout="+demoDeadline.String())
	}
	if err := change(waves, "Complete"); err != nil {
		return err
	}
	if err := change(broken, "Halted"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "dg", demoName, "-o",
		"jsonpath={.status.rollout.message}{\"\\n\"}"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "get", "deployments"); err != nil {
		return err
	}
	fmt.Println("\n   The other sites are unchanged, and the canary's old pods still serve. Repaired:")
	return change(mended, "Complete")
}
