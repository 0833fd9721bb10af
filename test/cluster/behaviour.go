package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// AnswerStatus answers every request with an error of the API: a Status with this HTTP code. A retryAfter, whole
// seconds, goes into the header of that name.
func AnswerStatus(code int, reason string, retryAfter time.Duration) Behaviour {
	return Behaviour{Answer: func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"interposed","reason":%q,"code":%d}`, reason, code)
	}}
}

// AnswerGarbage answers every request with status 200, the content type that was asked for and random bytes, in turn
// with and without the beginning that is right for the content type.
func AnswerGarbage() Behaviour {
	const size = 8 << 10
	beginnings := make(chan bool, 1)
	beginnings <- false
	return Behaviour{Answer: func(w http.ResponseWriter, r *http.Request) {
		right := <-beginnings
		beginnings <- !right
		body := make([]byte, size)
		_, _ = rand.Read(body) // it never fails
		mediaType := acceptable(r)
		if right {
			switch {
			case strings.HasSuffix(mediaType, "json"):
				copy(body, `{"kind":"`)
			case strings.HasSuffix(mediaType, "stream=watch"):
				copy(body, []byte{0, 0, 1, 0, 'k', '8', 's', 0})
			default:
				copy(body, "k8s\x00")
			}
		}
		w.Header().Set("Content-Type", mediaType)
		_, _ = w.Write(body) // the client may have gone
	}}
}

// Silence answers every request with status 200, the content type that was asked for, and then nothing.
func Silence() Behaviour {
	return Behaviour{Freezes: true, Answer: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", acceptable(r))
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the client may have gone
		<-r.Context().Done()
	}}
}

// Hang takes requests and never answers.
func Hang() Behaviour {
	return Behaviour{Freezes: true, Answer: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }}
}

// Truncate ends every answer before its end: one of known length after half of it, a stream in the middle of the first
// event that comes, in turn with an end as it should be and with a broken connection.
func Truncate() Behaviour {
	broken := make(chan bool, 1)
	broken <- false
	return Behaviour{Alter: func(response *http.Response) {
		if response.Request.URL.Query().Get("watch") != "" {
			end, breaks := io.EOF, <-broken
			if breaks {
				end = io.ErrUnexpectedEOF
			}
			broken <- !breaks
			response.Body = &truncatedStream{ReadCloser: response.Body, end: end}
			return
		}
		body, err := io.ReadAll(io.LimitReader(response.Body, maxReply))
		if err != nil {
			body = nil
		}
		_ = response.Body.Close() // read to its end
		response.ContentLength = int64(len(body))
		response.Header.Set("Content-Length", strconv.Itoa(len(body)))
		response.Body = io.NopCloser(bytes.NewReader(body[:len(body)/2]))
	}}
}

// truncatedStream ends in the middle of what is read first.
type truncatedStream struct {
	io.ReadCloser

	end  error
	read bool
}

// Read implements io.Reader.
func (s *truncatedStream) Read(p []byte) (int, error) {
	if s.read {
		return 0, s.end
	}
	n, err := s.ReadCloser.Read(p)
	s.read = n > 0
	if s.read {
		// Several events may come at once, and a client may well take those that came whole.
		n, err = (firstEvent(p[:n])+1)/2, nil
	}
	return n, err
}

// firstEvent is how much of the beginning of a stream is its first event: one in protobuf has its length before it, one
// in JSON ends with its line.
func firstEvent(piece []byte) int {
	length := len(piece)
	switch {
	case piece[0] == '{':
		if end := bytes.IndexByte(piece, '\n'); end >= 0 {
			length = end
		}
	case len(piece) >= 4:
		length = min(length, 4+int(binary.BigEndian.Uint32(piece)))
	}
	return length
}

// acceptable is the content type that kube-apiserver would answer the request with.
func acceptable(r *http.Request) string {
	mediaType := "application/json"
	if strings.Contains(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf") {
		mediaType = "application/vnd.kubernetes.protobuf"
		if r.URL.Query().Get("watch") != "" {
			mediaType += ";stream=watch"
		}
	}
	return mediaType
}
