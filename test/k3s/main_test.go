package k3s_test

import (
	"testing"

	"github.com/application-grid/application-grid/test/k3s"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

// shared is the cluster of all tests of this package.
var shared operate.Group

func TestMain(m *testing.M) { shared.Main(m, k3s.Start) }
