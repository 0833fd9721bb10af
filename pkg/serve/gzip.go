package serve

import (
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
)

// gzipThreshold is the body size, in bytes, from which compressing is worth its time, as in kube-apiserver.
const gzipThreshold = 128 << 10

// acceptsGzip reports whether the client accepts a compressed body.
func acceptsGzip(r *http.Request) bool {
	for _, coding := range elements(r, "Accept-Encoding") {
		name, parameters, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			quality, found := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
			return !found || strings.Trim(quality, "0.") != ""
		}
	}
	return false
}

// gzipWriters are reused, because each has several hundred kilobytes of buffers.
var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

func markZipped(w http.ResponseWriter) {
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
}

// Compress writes a whole gzip member. It flushes the member before its end, because a reader of a stream of members
// waits at the end of one for the next before it returns its data. It ignores errors of w, which mean that the client
// is gone.
func Compress(w io.Writer, body []byte) {
	zip := gzipWriters.Get().(*gzip.Writer) //nolint:forcetypeassert // nothing else is put there
	defer gzipWriters.Put(zip)
	zip.Reset(w)
	_, _ = zip.Write(body)
	_ = zip.Flush()
	_ = zip.Close()
}
