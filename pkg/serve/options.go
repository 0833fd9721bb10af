package serve

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Options are the query parameters of a LIST or WATCH.
type Options struct {
	Watch    bool
	Selector history.Selector
	// Revision is the resourceVersion; 0 for "0" and for none.
	Revision uint64
	// Exact asks for the state at exactly Revision, which is there only if it is the current one.
	Exact bool
	// SendInitialEvents starts a watch with events for the current state, and a bookmark at their end.
	SendInitialEvents bool
	// SkipInitialEvents is set for sendInitialEvents=false: the watch starts without events for the current state,
	// whatever the resourceVersion.
	SkipInitialEvents bool
	Bookmarks         bool
	// Timeout is how long a watch lasts; 0 lets the server choose.
	Timeout time.Duration
}

// ParseOptions reads the query of a LIST or WATCH of a resource. A value that is not valid is an error (400, or 422
// where parameters contradict each other); it is never replaced by a default.
func ParseOptions(query url.Values, resource *served.Resource, info RequestInfo) (Options, error) {
	q := queryParser{query: query}
	o := Options{
		Watch:     q.boolean("watch") || info.Verb == "watch",
		Bookmarks: q.boolean("allowWatchBookmarks"),
		Timeout:   time.Duration(q.number("timeoutSeconds", maxTimeoutSeconds)) * time.Second, //nolint:gosec // bounded
	}
	o.Revision = q.number("resourceVersion", 1<<63)
	q.number("limit", 1<<31) // which is ignored: lists are whole
	o.Selector = q.selector(resource, info)
	if q.err != nil {
		return Options{}, q.err
	}
	match := metav1.ResourceVersionMatch(query.Get("resourceVersionMatch"))
	given := internalversion.ListOptions{
		Watch:                o.Watch,
		ResourceVersion:      query.Get("resourceVersion"),
		ResourceVersionMatch: match,
		Continue:             query.Get("continue"),
	}
	if query.Has("sendInitialEvents") {
		given.SendInitialEvents = new(q.boolean("sendInitialEvents"))
		o.SendInitialEvents, o.SkipInitialEvents = *given.SendInitialEvents, !*given.SendInitialEvents
	}
	if q.err != nil {
		return Options{}, q.err
	}
	if problems := validation.ValidateListOptions(&given, true); len(problems) > 0 {
		return Options{}, apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "",
			problems)
	}
	o.Exact = match == metav1.ResourceVersionMatchExact
	if given.Continue != "" && !o.Watch {
		return Options{}, apierrors.NewResourceExpired("the continue parameter is not of this server, whose lists " +
			"are whole; list again without it")
	}
	return o, nil
}

// maxTimeoutSeconds is the longest timeout of a watch. A client whose watch has ended starts another.
const maxTimeoutSeconds = 24 * 60 * 60

// queryParser reads typed parameters and keeps the first error.
type queryParser struct {
	query url.Values
	err   error
}

func (q *queryParser) fail(name, value, expected string) {
	if q.err == nil {
		q.err = apierrors.NewBadRequest(fmt.Sprintf("invalid query parameter %s=%q: %s", name, value, expected))
	}
}

// boolean reads a boolean parameter. A parameter without a value is true.
func (q *queryParser) boolean(name string) bool {
	if !q.query.Has(name) {
		return false
	}
	value := q.query.Get(name)
	if value == "" {
		return true
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		q.fail(name, value, "must be true or false")
	}
	return b
}

// number reads a decimal number that is not negative. A number above most counts as most.
func (q *queryParser) number(name string, most uint64) uint64 {
	value := q.query.Get(name)
	if value == "" {
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 63)
	if err != nil {
		q.fail(name, value, "must be a decimal number that is not negative")
	}
	return min(n, most)
}

func (q *queryParser) selector(resource *served.Resource, info RequestInfo) history.Selector {
	selector := history.Selector{Namespace: info.Namespace}
	var err error
	if value := q.query.Get("labelSelector"); value != "" {
		if selector.Labels, err = labels.Parse(value); err != nil {
			q.fail("labelSelector", value, err.Error())
		}
	}
	if value := q.query.Get("fieldSelector"); value != "" {
		if selector.Fields, err = fields.ParseSelector(value); err != nil {
			q.fail("fieldSelector", value, err.Error())
			return selector
		}
		supported := supportedFields(resource)
		for _, requirement := range selector.Fields.Requirements() {
			if !slices.Contains(supported, requirement.Field) {
				q.fail("fieldSelector", value, fmt.Sprintf("field label not supported for %s: %s (supported: %s)",
					resource.Resource, requirement.Field, strings.Join(supported, ", ")))
			}
		}
	}
	if info.Name != "" {
		// The path has /watch/ and a name, which is the deprecated way to watch one object.
		named := fields.OneTermEqualSelector("metadata.name", info.Name)
		if selector.Fields == nil {
			selector.Fields = named
		} else {
			selector.Fields = fields.AndSelectors(selector.Fields, named)
		}
	}
	return selector
}

func supportedFields(resource *served.Resource) []string {
	supported := []string{"metadata.name"}
	if resource.Namespaced {
		supported = append(supported, "metadata.namespace")
	}
	return append(supported, resource.FieldLabels...)
}
