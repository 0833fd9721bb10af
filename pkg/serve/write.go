package serve

import (
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// writeBody writes a response with a whole body. It ignores errors of writing: they mean that the client is gone.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, encoding encoding, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", encoding.contentType())
	h.Set("Cache-Control", "no-cache, private")
	h.Add("Vary", "Accept")
	// How long the client may take to accept it. A ResponseWriter of a test may not support deadlines.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.writeTimeout()))
	// For a client on this machine compressing takes longer than sending the bytes that it saves.
	if len(body) < gzipThreshold || !acceptsGzip(r) || isLocal(r) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
		return nil
	}
	markZipped(w)
	Compress(w, body)
	return nil
}

// isLocal reports whether the client is on this machine.
func isLocal(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// write writes a response. It ignores errors of writing: they mean that the client is gone.
func write(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
