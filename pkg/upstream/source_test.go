package upstream

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestBookmarksShortenThePatience: a watch may be quiet for long, until the upstream is seen to send bookmarks.
func TestBookmarksShortenThePatience(t *testing.T) {
	s := &source{clock: time.Now}
	watch := httptest.NewRequest(http.MethodGet, "/x?watch=true&timeoutSeconds=400", nil)
	long := s.silence(watch)
	s.noteObject()
	s.UpdateResourceVersion("1")
	if got := s.silence(watch); got != long {
		t.Errorf("the report of an event's revision is taken for a bookmark: %s, %s before", got, long)
	}
	s.UpdateResourceVersion("2")
	if got := s.silence(watch); got >= long {
		t.Errorf("a bookmark is not noticed: %s, %s before", got, long)
	}
}
