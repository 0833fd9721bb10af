// Command pod is what runs in small containers of the kubeadm cluster. By its name it is pause, which holds a pod's
// namespaces, or echo, which answers HTTP requests with "node=NODE pod=POD" from the environment. Run in a container of
// echo, "echo hostname" prints the pod's name.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	switch name := filepath.Base(os.Args[0]); name {
	case "pause":
		<-end
	case "echo":
		if len(os.Args) > 1 {
			printHostname(os.Args[1:])
			return
		}
		echo(end)
	default:
		fmt.Fprintf(os.Stderr, "%s: call it by a link of the name pause or echo\n", name)
		os.Exit(2)
	}
}

// printHostname is what else echo does.
func printHostname(args []string) {
	name, err := os.Hostname()
	if err != nil || len(args) != 1 || args[0] != "hostname" {
		fmt.Fprintf(os.Stderr, "echo %q: it knows hostname (%v)\n", args, err)
		os.Exit(2)
	}
	fmt.Println(name)
}

// drain is how long a server goes on after it is asked to end, as servers do behind a Service: longer than it takes
// until no node's rules lead to it.
const drain = 5 * time.Second

// echo serves on port 8080 until drain after end. /readyz says that it is not ready while /tmp/unready exists, and from
// end on.
func echo(end <-chan os.Signal) {
	answer := fmt.Sprintf("node=%s pod=%s\n", os.Getenv("NODE_NAME"), os.Getenv("POD_NAME"))
	var ending atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("/tmp/unready"); err == nil || ending.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	go func() {
		<-end
		ending.Store(true)
		time.Sleep(drain)
		os.Exit(0)
	}()
	if name, err := os.Hostname(); err == nil {
		fmt.Println("serving in", name)
		mux.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	}
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
