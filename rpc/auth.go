package rpc

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
)

type callerKey struct{}

// callerOf returns who makes the call; authenticated put it there.
func callerOf(ctx context.Context) holdfast.Caller {
	caller, _ := ctx.Value(callerKey{}).(holdfast.Caller)
	return caller
}

// authenticated lets known callers through to next, before anything of their
// request is read (trap T7), and answers the rest in their own protocol.
func authenticated(options Options, refuse *connect.ErrorWriter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := authenticate(r, options)
		if err != nil {
			if err := refuse.Write(w, r, toWire(err)); err != nil {
				options.Logger.DebugContext(r.Context(), "refusal not delivered", "error", err)
			}
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, caller)))
	})
}

func authenticate(r *http.Request, options Options) (holdfast.Caller, error) {
	header := r.Header.Get("Authorization")
	if options.Anonymous != nil && (header == "" || options.Authenticate == nil) {
		return *options.Anonymous, nil
	}
	if header == "" {
		return holdfast.Caller{}, holdfast.E(holdfast.Unauthenticated, holdfast.ReasonCredentials,
			"no API key: send the header Authorization: Bearer hf_…; the server's first start wrote one to admin.key in its data directory")
	}
	scheme, token, _ := strings.Cut(header, " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" || options.Authenticate == nil {
		return holdfast.Caller{}, wrongKey("the Authorization header holds no API key: it must read Bearer hf_…")
	}
	caller, err := options.Authenticate(r.Context(), token)
	if err == nil {
		return caller, nil
	}
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return holdfast.Caller{}, wrongKey("the API key is not valid, or was revoked: use the one in admin.key of the server's data directory, or ask for another")
	}
	return holdfast.Caller{}, err
}

func wrongKey(message string) error {
	return holdfast.E(holdfast.Unauthenticated, holdfast.ReasonCredentials, "%s", message)
}
