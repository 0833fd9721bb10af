package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// errOwnShare means that a hub does not provide the data.
var errOwnShare = errors.New("this wrapper is given its own node's share only, by the hub: another site's endpoints " +
	"are not known here; ask one without --hub")

// explain answers /debug/explain/NAMESPACE/SERVICE, with ?node=NAME for another node's view, with a
// view.Explanation.
func (p *Proxy) explain(w http.ResponseWriter, r *http.Request) {
	service := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("service")}
	node := r.URL.Query().Get("node")
	explanation, err := p.view.Explain(service, p.config.NodeName, node)
	switch {
	case p.config.Hub && node != "" && node != p.config.NodeName:
		err = serve.NotReady(errOwnShare.Error())
	case errors.Is(err, served.ErrNotReady), errors.Is(err, served.ErrAbsent):
		err = serve.NotReady(err.Error())
	case errors.Is(err, view.ErrNoService):
		err = apierrors.NewNotFound(served.Services.GroupResource(), service.String())
	case errors.Is(err, view.ErrNoNode):
		err = apierrors.NewNotFound(served.Nodes.GroupResource(), node)
	case err != nil:
		err = fmt.Errorf("explaining Service %s: %w", service, err)
	}
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if p.config.Hub {
		explanation.Notes = append(explanation.Notes,
			"the hub gives this node only the endpoints that one of the Service's keys matches; those of other sites "+
				"are not known here")
	}
	body, err := json.Marshal(explanation)
	if err != nil {
		serve.WriteError(w, r, fmt.Errorf("encoding the explanation: %w", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) // an error would mean that the client is gone
}
