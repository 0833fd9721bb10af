package hub

import (
	"context"
	"net/http"

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
		scheme.AddKnownTypeWithName(version.WithKind(hubv1alpha1.ShareKind), &metav1.PartialObjectMetadata{})
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	metav1.AddToGroupVersion(scheme, hubv1alpha1.GroupVersion)
	utilruntime.Must(scheme.SetVersionPriority(hubv1alpha1.GroupVersion))
}

// install adds the group to an API server.
func install(server *genericapiserver.GenericAPIServer) error {
	group := genericapiserver.NewDefaultAPIGroupInfo(hubv1alpha1.GroupName, scheme, runtime.NewParameterCodec(scheme),
		codecs)
	group.VersionedResourcesStorageMap[hubv1alpha1.GroupVersion.Version] = map[string]rest.Storage{
		hubv1alpha1.Shares: resource{},
	}
	return server.InstallAPIGroup(&group)
}

// resource is that of shares. It is here for discovery: withShares answers its requests.
type resource struct{}

// New implements rest.Storage.
func (resource) New() runtime.Object { return &metav1.PartialObjectMetadata{} }

// Destroy implements rest.Storage.
func (resource) Destroy() {}

// NamespaceScoped implements rest.Scoper.
func (resource) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (resource) GetSingularName() string { return "share" }

// Kind implements rest.KindProvider.
func (resource) Kind() string { return hubv1alpha1.ShareKind }

// Get implements rest.Getter.
func (resource) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewMethodNotSupported(sharesName, "get")
}

// Watch implements rest.Watcher.
func (resource) Watch(context.Context, *metainternalversion.ListOptions) (watch.Interface, error) {
	return nil, apierrors.NewMethodNotSupported(sharesName, "watch")
}

var sharesName = schema.GroupResource{Group: hubv1alpha1.GroupName, Resource: hubv1alpha1.Shares}

// withShares answers requests for shares, which package k8s.io/apiserver would encode for each of them.
func withShares(next http.Handler, answers *shareServer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		switch {
		case !ok || info.APIGroup != hubv1alpha1.GroupName || info.APIVersion != hubv1alpha1.GroupVersion.Version ||
			info.Resource != hubv1alpha1.Shares:
			next.ServeHTTP(w, r)
		case info.Subresource != "" || info.Namespace != "":
			serve.WriteError(w, r, apierrors.NewNotFound(sharesName, r.URL.Path))
		case info.Verb == "watch":
			answers.Serve(w, later(r), info.Name, true)
		case info.Verb == "get":
			answers.Serve(w, r, info.Name, false)
		default:
			serve.WriteError(w, r, apierrors.NewMethodNotSupported(sharesName, info.Verb))
		}
	})
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
