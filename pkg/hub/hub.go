package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	genericfeatures "k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/hub/servingcert"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/metricsport"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

const program = "application-grid-hub"

// goawayChance is the share of answers after which the hub closes the connection. Streams last 10 to 20 minutes, and
// the API server passes many of them on over one connection. The next connection reaches any replica, so new replicas
// get their part of the streams.
const goawayChance = 0.02

// DefaultMaxQueuedBytes lets a hub in a container of 1.5 GB begin the streams of a whole fleet at the same time.
const DefaultMaxQueuedBytes = 192 << 20

// stalePatience is how long a source may fail before wrappers should use another replica: longer than an API server
// takes to start. It is counted from the failure, because before that a source may have received nothing for a long
// time, if nothing changed.
const stalePatience = 30 * time.Second

// followed are the resources that the hub follows, by their part of the version. The inputs of the facts have the same
// names.
var followed = [len(hubv1alpha1.Version{})]*served.Resource{
	hubv1alpha1.VersionNodes: served.Nodes, hubv1alpha1.VersionServices: served.Services,
	hubv1alpha1.VersionSlices: served.EndpointSlices,
}

// Config is what a Server is made from.
type Config struct {
	// Connection is the connection to the API server that is followed.
	Connection *apiclient.Connection
	// MaxQueuedBytes limits the memory of unsent data of streams; 0 means DefaultMaxQueuedBytes.
	MaxQueuedBytes int
	// Service is the Service by which the API server reaches the hub. The certificate in Secret is for its name.
	Service types.NamespacedName
	// Secret, if it has a name, is the Secret in which the replicas keep their own serving certificate.
	Secret types.NamespacedName
	// MetricsBindAddress, if set, is where metrics are served over plain HTTP.
	MetricsBindAddress string
	// AllowUnboundTokens lets ServiceAccount tokens that are not bound to a node ask for every node's share.
	AllowUnboundTokens bool
	// ReviewAll makes the hub ask the API server again about requests that it has passed on.
	ReviewAll bool
	// Apply sets serving, authentication, authorization and audit.
	Apply func(*genericapiserver.Config) error
}

// Server is the hub.
type Server struct {
	config  Config
	facts   *facts.Facts
	shares  *shares
	group   *follow.Group
	sources [len(followed)]*follow.Source
	metrics *metrics
	api     *genericapiserver.GenericAPIServer
	// writer writes streams.
	writer *serve.Server
	// refused counts the requests for shares that were answered 429.
	refused atomic.Int64
	// stopping is closed when watches should end.
	stopping chan struct{}

	mu sync.Mutex
	// underWay counts the running streams and lists, including those that have not begun, by caller and node. Guarded
	// by mu.
	underWay map[string]int
}

// awaitRefusal is how long the API server may refuse the hub's question: one that has just started refuses everything
// until it has read the RBAC rules.
const awaitRefusal = 10 * time.Second

// NewOnceAnswered makes a Server as soon as the API server answers, from which New reads once how callers are
// authenticated. A hub that ended instead, because it starts while the API server is away, would be restarted with
// growing pauses. It returns nil when ctx is done, and the errors of New.
func NewOnceAnswered(ctx context.Context, config Config) (*Server, error) {
	upstream, err := config.Connection.Config()
	if err != nil {
		return nil, err
	}
	group, err := follow.NewGroup(upstream, nil)
	if err != nil {
		return nil, err
	}
	client, err := group.Client(corev1.SchemeGroupVersion, apiclient.IdleTimeout)
	if err != nil {
		return nil, err
	}
	ask := func(ctx context.Context) error {
		return client.Get().Namespace(metav1.NamespaceSystem).Resource("configmaps").
			Name("extension-apiserver-authentication").MaxRetries(0).Do(ctx).Error()
	}
	for {
		awaitAnswer(ctx, ask)
		if ctx.Err() != nil {
			return nil, nil //nolint:nilnil,nilerr // as the comment says
		}
		server, err := New(config, klog.FromContext(ctx))
		if err == nil {
			return server, nil
		}
		if asked := ask(ctx); asked == nil || isRefused(asked) {
			return nil, err
		}
	}
}

// awaitAnswer asks the API server until it answers, or has refused for awaitRefusal, or ctx is done.
func awaitAnswer(ctx context.Context, ask func(context.Context) error) {
	var last string
	var refused time.Time
	// The only error is that of ctx.
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := ask(ctx)
		if isRefused(err) {
			if refused.IsZero() {
				refused = time.Now()
			}
			return time.Since(refused) >= awaitRefusal, nil
		}
		refused = time.Time{}
		if err != nil && err.Error() != last {
			klog.FromContext(ctx).Info("Waiting for the API server", "err", err)
			last = err.Error()
		}
		return err == nil, nil
	})
}

func isRefused(err error) bool { return follow.IsRefusal(err) || apierrors.IsNotFound(err) }

// New makes a Server. It listens, and asks the API server how to authenticate callers. It returns an error for an
// invalid configuration.
func New(config Config, logger klog.Logger) (*Server, error) {
	upstream, err := config.Connection.Config()
	if err != nil {
		return nil, err
	}
	s, err := newServer(config, upstream, logger)
	if err != nil {
		return nil, err
	}
	config.Connection.OnChange(s.group.Retry)
	if s.api, err = s.newAPI(upstream); err != nil {
		return nil, err
	}
	return s, nil
}

// newServer makes a Server without an API server before it. upstream is the configuration of the API server that is
// followed.
func newServer(config Config, upstream *rest.Config, logger klog.Logger) (*Server, error) {
	s := &Server{config: config, stopping: make(chan struct{}), underWay: make(map[string]int)}
	s.facts = facts.New(facts.Options{Logger: logger.WithName("facts")})
	s.shares = newShares(s.facts, cmp.Or(config.MaxQueuedBytes, DefaultMaxQueuedBytes))
	var err error
	if s.group, err = follow.NewGroup(upstream, s.facts); err != nil {
		return nil, err
	}
	for part, r := range followed {
		s.sources[part], err = s.group.Add(follow.Options{
			Name: r.Resource, Resource: r.GroupVersionResource, Sink: s.facts.Input(r.Resource),
		})
		if err != nil {
			return nil, err
		}
		s.sources[part].Start()
	}
	s.metrics = newMetrics(s)
	s.writer = &serve.Server{Observer: s.metrics, Stopping: s.stopping}
	return s, nil
}

func (s *Server) newAPI(upstream *rest.Config) (*genericapiserver.GenericAPIServer, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status, and what discovery answers
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	// The filters of a watch return before its stream begins (detachStreams), so their stacks are not held as long as
	// that.
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.Set(string(genericfeatures.APIServingWithRoutine) + "=true"); err != nil {
		return nil, fmt.Errorf("setting feature gates: %w", err)
	}
	config.FeatureGate = gates
	config.GoawayChance = goawayChance
	config.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	if err := s.config.Apply(config); err != nil {
		return nil, err
	}
	if s.config.Secret.Name != "" {
		keeper, err := servingcert.New(upstream, servingcert.Options{
			Secret: s.config.Secret, FieldManager: program, APIService: hubv1alpha1.APIServiceName,
			Names: []string{s.config.Service.Name + "." + s.config.Service.Namespace + ".svc"},
		})
		if err != nil {
			return nil, err
		}
		config.SecureServing.Cert = keeper
	}
	guardShares(config, s.config)
	config.ReadyzChecks = append(config.ReadyzChecks, healthz.NamedCheck("shares", func(*http.Request) error {
		return s.checkCurrent()
	}))
	config.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return s.closeWhileFailing(genericapiserver.DefaultBuildHandlerChain(api, c))
	}
	api, err := config.Complete(nil).New(program, genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, fmt.Errorf("making the API server: %w", err)
	}
	if err := installAPIGroup(api, codecs, s); err != nil {
		return nil, fmt.Errorf("installing %s: %w", hubv1alpha1.GroupVersion, err)
	}
	return api, nil
}

// closeWhileFailing closes the connection after every answer while the API server cannot be followed. The API server
// passes the requests of many wrappers on over one connection; it then opens a new one, which reaches any replica. Over
// HTTP/2, running requests on the connection continue.
func (s *Server) closeWhileFailing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.ContainsFunc(s.group.States(), func(s follow.State) bool { return s.Err != nil || !s.Synced }) {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Run serves until ctx is done, and then lets running requests end. It is called once in a process, because its metrics
// are those of the process.
func (s *Server) Run(ctx context.Context) error {
	legacyregistry.RawMustRegister(s.metrics.all...)
	background, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	if s.config.MetricsBindAddress != "" {
		port := metricsport.Port{Address: s.config.MetricsBindAddress, Metrics: legacyregistry.Handler()}
		wg.Go(func() { port.Run(background) })
	}
	wg.Go(func() { s.config.Connection.Run(background) })
	wg.Go(func() { s.followCluster(background) })
	return s.api.PrepareRun().RunWithContext(ctx)
}

// followCluster follows the cluster, and ends stale streams, until ctx is done. All streams end then.
func (s *Server) followCluster(ctx context.Context) {
	context.AfterFunc(ctx, func() { close(s.stopping) })
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.group.Run(ctx) })
	wait.UntilWithContext(ctx, s.endStale, time.Second)
}

// checkCurrent returns why the shares may be out of date; nil if they are not.
func (s *Server) checkCurrent() error { return checkStates(s.group.States(), time.Now()) }

func checkStates(states []follow.State, now time.Time) error {
	for _, s := range states {
		switch {
		case !s.Synced:
			return errNotCurrent(fmt.Errorf("%s: not synced with the API server yet: %w",
				s.Name, cmp.Or(s.Err, errors.New("it was not listed"))))
		case s.Err != nil && now.Sub(s.FailingSince) > stalePatience:
			return errNotCurrent(fmt.Errorf("%s: cannot be followed since %s: %w",
				s.Name, s.FailingSince.UTC().Format(time.RFC3339), s.Err))
		}
	}
	return nil
}

// endStale ends all streams when the shares may be stale. Wrappers then ask another replica, or learn that none is
// available. A stream that is silent because the hub receives nothing looks like one without changes.
func (s *Server) endStale(ctx context.Context) {
	if err := s.checkCurrent(); err != nil {
		if n := s.shares.endStreams(err); n > 0 {
			klog.FromContext(ctx).Info("Ended all streams", "streams", n, "reason", err)
		}
	}
}
