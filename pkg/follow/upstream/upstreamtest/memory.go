package upstreamtest

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Memory is a transport that carries requests to a Handler without a network, which a bubble of testing/synctest could
// not wait for. A Handler that panics breaks off its response, or refuses the connection if it has not begun one.
type Memory struct{ Handler http.Handler }

// errRefused is the error of a request whose connection is refused.
var errRefused = errors.New("connection refused")

// RoundTrip implements http.RoundTripper.
func (m Memory) RoundTrip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	w := &memoryWriter{header: http.Header{}, body: writer, begun: make(chan struct{})}
	stop := context.AfterFunc(r.Context(), func() { _ = writer.CloseWithError(context.Cause(r.Context())) })
	failed := make(chan error, 1)
	go func() {
		defer stop()
		defer func() {
			if recovered := recover(); recovered != nil {
				_ = writer.CloseWithError(io.ErrUnexpectedEOF)
				failed <- errRefused
				return
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.Close()
		}()
		request := r.Clone(r.Context())
		request.Body = http.NoBody
		if request.Header.Get("Accept-Encoding") == "" {
			request.Header.Set("Accept-Encoding", "gzip")
		}
		m.Handler.ServeHTTP(w, request)
	}()
	select {
	case <-w.begun:
		body := io.ReadCloser(reader)
		if w.header.Get("Content-Encoding") == "gzip" && r.Header.Get("Accept-Encoding") == "" {
			body = &unzipped{ReadCloser: reader}
		}
		return &http.Response{
			StatusCode: w.code, Status: http.StatusText(w.code), Header: w.header.Clone(), Body: body, Request: r,
			ContentLength: -1, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}, nil
	case err := <-failed:
		return nil, err
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

// unzipped decompresses a body, as http.Transport does for whom has not asked for compression.
type unzipped struct {
	io.ReadCloser

	zip *gzip.Reader
}

// Read implements io.Reader.
func (u *unzipped) Read(p []byte) (n int, err error) {
	if u.zip == nil {
		if u.zip, err = gzip.NewReader(u.ReadCloser); err != nil {
			return 0, err
		}
	}
	return u.zip.Read(p)
}

// memoryWriter is the response of a request that Memory carries.
type memoryWriter struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	code   int
	begun  chan struct{}
}

func (w *memoryWriter) Header() http.Header { return w.header }

func (w *memoryWriter) WriteHeader(code int) {
	w.once.Do(func() {
		w.code = code
		close(w.begun)
	})
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// FlushError is for http.ResponseController.
func (w *memoryWriter) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return nil
}
