// Command traefik is an ingress controller: Traefik's own provider finds the pods behind each path of the cluster's
// Ingresses, and Traefik's own router the path of a request, which goes to one of the pods by its address. It is not
// the whole Traefik, which cannot be built from Go's module proxy.
//
// Usage: traefik LISTEN-ADDRESS API-SERVER-URL CA-FILE TOKEN-FILE
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sync/atomic"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	muxer "github.com/traefik/traefik/v3/pkg/muxer/http"
	"github.com/traefik/traefik/v3/pkg/provider/kubernetes/ingress"
	"github.com/traefik/traefik/v3/pkg/safe"
	"github.com/traefik/traefik/v3/pkg/types"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: traefik LISTEN-ADDRESS API-SERVER-URL CA-FILE TOKEN-FILE")
	}
	provider := &ingress.Provider{
		Endpoint: os.Args[2], CertAuthFilePath: os.Args[3], Token: types.FileOrContent(os.Args[4]),
	}
	configurations := make(chan dynamic.Message)
	if err := provider.Provide(configurations, safe.NewPool(context.Background())); err != nil {
		log.Fatal(err)
	}
	var current atomic.Pointer[http.Handler]
	go func() {
		for message := range configurations {
			routes, err := routesOf(message.Configuration.HTTP)
			if err != nil {
				log.Fatal(err)
			}
			current.Store(&routes)
		}
	}()
	log.Fatal(http.ListenAndServe(os.Args[1], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		routes := current.Load()
		if routes == nil {
			http.Error(w, "there is no configuration yet", http.StatusServiceUnavailable)
			return
		}
		(*routes).ServeHTTP(w, r)
	})))
}

// routesOf makes the routes of a configuration.
func routesOf(configuration *dynamic.HTTPConfiguration) (http.Handler, error) {
	parser, err := muxer.NewSyntaxParser()
	if err != nil {
		return nil, err
	}
	routes := muxer.NewMuxer(parser)
	for name, router := range configuration.Routers {
		service := configuration.Services[router.Service]
		if service == nil {
			return nil, fmt.Errorf("route %s leads to %s, which is not there", name, router.Service)
		}
		handler, err := balance(service.LoadBalancer.Servers)
		if err != nil {
			return nil, fmt.Errorf("route %s: %w", name, err)
		}
		if err := routes.AddRoute(router.Rule, router.RuleSyntax, router.Priority, handler); err != nil {
			return nil, fmt.Errorf("route %s: %w", name, err)
		}
	}
	return routes, nil
}

// balance sends requests to the servers by turns.
func balance(servers []dynamic.Server) (http.Handler, error) {
	if len(servers) == 0 {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "there is no pod", http.StatusServiceUnavailable)
		}), nil
	}
	proxies := make([]http.Handler, len(servers))
	for i, server := range servers {
		to, err := url.Parse(server.URL)
		if err != nil {
			return nil, err
		}
		proxies[i] = httputil.NewSingleHostReverseProxy(to)
	}
	var turn atomic.Uint64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxies[turn.Add(1)%uint64(len(proxies))].ServeHTTP(w, r)
	}), nil
}
