package hub

import (
	"context"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	endpointmetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routine"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
)

// scheme has what the group is installed with: a kind for its resource, of which there are no objects.
var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	for _, version := range []schema.GroupVersion{
		hubv1alpha1.GroupVersion, {Group: hubv1alpha1.GroupName, Version: runtime.APIVersionInternal},
	} {
		for _, kind := range []string{"Node", hubv1alpha1.ShareKind} {
			scheme.AddKnownTypeWithName(version.WithKind(kind), &metav1.PartialObjectMetadata{})
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(scheme, hubv1alpha1.GroupVersion)
	utilruntime.Must(scheme.SetVersionPriority(hubv1alpha1.GroupVersion))
}

// install adds the group to an API server. share answers a request for the share of a node, by the path below it.
func install(server *genericapiserver.GenericAPIServer, share shareFunc) error {
	group := genericapiserver.NewDefaultAPIGroupInfo(hubv1alpha1.GroupName, scheme, runtime.NewParameterCodec(scheme),
		codecs)
	group.VersionedResourcesStorageMap[hubv1alpha1.GroupVersion.Version] = map[string]rest.Storage{
		hubv1alpha1.Resource: resource("node"),
		hubv1alpha1.Resource + "/" + hubv1alpha1.Subresource: proxies{"node", share},
		hubv1alpha1.Shares: sharesResource{"share"},
	}
	return server.InstallAPIGroup(&group)
}

// resource is a resource without verbs. Its value is the name of one of it.
type resource string

// New implements rest.Storage.
func (resource) New() runtime.Object { return &metav1.PartialObjectMetadata{} }

// Destroy implements rest.Storage.
func (resource) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (resource) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (r resource) GetSingularName() string { return string(r) }

// sharesResource is the resource of streams. It is here for discovery: withStreams answers its requests.
type sharesResource struct{ resource }

// Kind implements rest.KindProvider.
func (sharesResource) Kind() string { return hubv1alpha1.ShareKind }

// Watch implements rest.Watcher.
func (sharesResource) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewMethodNotSupported(sharesName, "watch")
}

var sharesName = schema.GroupResource{Group: hubv1alpha1.GroupName, Resource: hubv1alpha1.Shares}

// withStreams answers requests for the resource of streams, which package k8s.io/apiserver would encode for each of
// them.
func withStreams(next http.Handler, stream func(w http.ResponseWriter, r *http.Request, node string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		switch {
		case !ok || !info.IsResourceRequest || info.APIGroup != hubv1alpha1.GroupName ||
			info.APIVersion != hubv1alpha1.GroupVersion.Version || info.Resource != hubv1alpha1.Shares:
			next.ServeHTTP(w, r)
		case info.Verb != "watch" || info.Subresource != "" || info.Namespace != "":
			serve.WriteError(w, r, apierrors.NewMethodNotSupported(sharesName, info.Verb))
		default:
			stream(w, later(r), info.Name)
		}
	})
}

// shareFunc answers a request for the share of a node, by the path below it.
type shareFunc func(w http.ResponseWriter, r *http.Request, node, path string)

// proxies is the subresource.
type proxies struct {
	resource

	share shareFunc
}

// ConnectMethods implements rest.Connecter: the API server answers 405 to the others.
func (proxies) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions implements rest.Connecter: the query is package serve's business.
func (proxies) NewConnectOptions() (options runtime.Object, hasPath bool, pathKey string) {
	return nil, true, ""
}

// Connect implements rest.Connecter.
func (p proxies) Connect(_ context.Context, node string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.Path,
			hubv1alpha1.GroupVersionPath+"/"+hubv1alpha1.Resource+"/"+node+"/"+hubv1alpha1.Subresource)
		if !ok {
			serve.WriteError(w, r, notFound(r))
			return
		}
		p.share(w, r, node, path)
	}), nil
}

// later has a watch go on when the filters of the API server have returned, if these expect that (newAPI). It counts as
// long-running as it does in the filters.
func later(r *http.Request) *http.Request {
	ctx := r.Context()
	task := routine.TaskFrom(ctx)
	if task == nil {
		return r
	}
	return r.WithContext(serve.WithLater(ctx, func(stream func()) {
		info, _ := request.RequestInfoFrom(ctx)
		task.Func = func() { endpointmetrics.RecordLongRunning(r, info, endpointmetrics.APIServerComponent, stream) }
	}))
}

// resolver takes a path that names no resource, such as that of the group with nothing but "proxy" below it, for one of
// no resource. The API server would answer 500.
type resolver struct{ request.RequestInfoResolver }

// NewRequestInfo implements request.RequestInfoResolver.
func (s resolver) NewRequestInfo(r *http.Request) (*request.RequestInfo, error) {
	info, err := s.RequestInfoResolver.NewRequestInfo(r)
	if err != nil {
		return &request.RequestInfo{Path: r.URL.Path, Verb: strings.ToLower(r.Method)}, nil //nolint:nilerr // as above
	}
	return info, nil
}

// notFound is the answer to a path that there is not.
func notFound(r *http.Request) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(r.Method), schema.GroupResource{},
		"", "there is no "+r.URL.Path, 0, false)
}
