package hub

import (
	"net/http"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiendpoints "k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routine"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
)

// installAPIGroup adds the group to an API server: to its discovery, and with a handler for shares, because
// k8s.io/apiserver would encode each answer separately.
func installAPIGroup(
	server *genericapiserver.GenericAPIServer, codecs serializer.CodecFactory, answers http.Handler,
) error {
	resources := []metav1.APIResource{{
		Group: hubv1alpha1.GroupName, Version: hubv1alpha1.GroupVersion.Version, Kind: hubv1alpha1.ShareKind,
		Name: hubv1alpha1.Shares, SingularName: "share", Verbs: metav1.Verbs{"get", "watch"},
	}}
	aggregated, err := apiendpoints.ConvertGroupVersionIntoToDiscovery(resources)
	if err != nil {
		return err
	}
	server.AggregatedDiscoveryGroupManager.AddGroupVersion(hubv1alpha1.GroupName, apidiscoveryv2.APIVersionDiscovery{
		Version: hubv1alpha1.GroupVersion.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		Resources: aggregated,
	})
	mux := server.Handler.NonGoRestfulMux
	mux.Handle(hubv1alpha1.GroupVersionPath, discovery.NewAPIVersionHandler(codecs, hubv1alpha1.GroupVersion,
		discovery.APIResourceListerFunc(func() []metav1.APIResource { return resources })))
	mux.Handle(hubv1alpha1.SharesPath, answers)
	mux.HandlePrefix(hubv1alpha1.SharesPath+"/", answers)
	return nil
}

var sharesName = schema.GroupResource{Group: hubv1alpha1.GroupName, Resource: hubv1alpha1.Shares}

// ServeHTTP answers requests for shares that have passed the filters of the API server.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	var err error
	switch {
	case !ok || info.Resource != hubv1alpha1.Shares || info.Subresource != "":
		err = apierrors.NewNotFound(sharesName, r.URL.Path)
	case info.Verb == "watch":
		err = s.watch(w, detachStreams(r), info.Name)
	case info.Verb == "get":
		err = s.list(w, r, info.Name)
	default:
		err = apierrors.NewMethodNotSupported(sharesName, info.Verb)
	}
	if apierrors.IsTooManyRequests(err) {
		s.refused.Add(1)
	}
	if err != nil {
		serve.WriteError(w, r, err)
	}
}

// detachStreams lets a watch continue when the filters of the API server have returned, if these expect that (newAPI).
// It counts as long-running as it does in the filters.
func detachStreams(r *http.Request) *http.Request {
	ctx := r.Context()
	task := routine.TaskFrom(ctx)
	if task == nil {
		return r
	}
	return r.WithContext(serve.WithDetachedStreams(ctx, func(stream func()) {
		info, _ := request.RequestInfoFrom(ctx)
		task.Func = func() { endpointmetrics.RecordLongRunning(r, info, endpointmetrics.APIServerComponent, stream) }
	}))
}
