package server

import (
	"context"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/client"
	"github.com/holdfast-dev/holdfast/mcp"
	"github.com/holdfast-dev/holdfast/rpc"
	"github.com/holdfast-dev/holdfast/transport"
)

// serveMCP offers the API's tools to agents over HTTP. Each request's own API key
// says who calls: its tools call the API in memory, as that caller would from outside.
func (s *Server) serveMCP(api http.Handler, options rpc.Options) http.Handler {
	network := &transport.Network{}
	network.Handle("api"+memorySuffix, api)
	s.onClose("the tools of agents", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return network.Close(ctx)
	})
	tools := mcp.NewHandler(func(key string) (*client.Client, error) {
		return client.New("http://api"+memorySuffix, client.WithHTTPClient(&http.Client{Transport: network.RoundTripper()}), client.WithAPIKey(key))
	}, programVersion())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		key = strings.TrimSpace(key)
		switch {
		case strings.EqualFold(scheme, "Bearer") && key != "":
			if _, err := options.Authenticate(r.Context(), key); err != nil {
				refuse(w, "the API key is not valid")
				return
			}
		case options.Anonymous == nil:
			refuse(w, "an API key is needed: Authorization: Bearer hf_…")
			return
		}
		tools.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, why string) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	answer(w, http.StatusUnauthorized, why)
}

// programVersion is what the program calls itself to agents.
func programVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
