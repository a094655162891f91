package rpc

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-dev/holdfast"
	"github.com/holdfast-dev/holdfast/internal/stack"
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
		stack.Grow(0)
		caller, token, err := authenticate(r, options)
		if err != nil {
			if err := refuse.Write(w, r, toWire(err)); err != nil {
				options.Logger.DebugContext(r.Context(), "refusal not delivered", "error", err)
			}
			return
		}
		ctx := context.WithValue(r.Context(), callerKey{}, caller)
		if token != "" {
			var end context.CancelFunc
			ctx, end = whileValid(ctx, options, token)
			defer end()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// whileValid is the context of a call, which ends when the call's key turns out to
// be valid no more. A call that is over sooner is not looked at again.
func whileValid(ctx context.Context, options Options, token string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	long := time.AfterFunc(options.Recheck, func() {
		tick := time.NewTicker(options.Recheck)
		defer tick.Stop()
		for ctx.Err() == nil {
			if _, err := options.Authenticate(ctx, token); holdfast.CodeOf(err) == holdfast.NotFound {
				cancel(wrongKey("the API key was revoked during the call"))
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		long.Stop()
		cancel(nil)
	}
}

// authenticate also returns the token by which the caller is known, "" without one.
func authenticate(r *http.Request, options Options) (holdfast.Caller, string, error) {
	header := r.Header.Get("Authorization")
	if options.Anonymous != nil && (header == "" || options.Authenticate == nil) {
		return *options.Anonymous, "", nil
	}
	if header == "" {
		return holdfast.Caller{}, "", holdfast.E(holdfast.Unauthenticated, holdfast.ReasonCredentials,
			"no API key: send the header Authorization: Bearer hf_…; the server's first start wrote one to admin.key in its data directory")
	}
	scheme, token, _ := strings.Cut(header, " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" || options.Authenticate == nil {
		return holdfast.Caller{}, "", wrongKey("the Authorization header holds no API key: it must read Bearer hf_…")
	}
	caller, err := options.Authenticate(r.Context(), token)
	if err == nil {
		return caller, token, nil
	}
	if holdfast.CodeOf(err) == holdfast.NotFound {
		return holdfast.Caller{}, "", wrongKey("the API key is not valid, or was revoked: use the one in admin.key of the server's data directory, or ask an admin for another")
	}
	return holdfast.Caller{}, "", err
}

func wrongKey(message string) error {
	return holdfast.E(holdfast.Unauthenticated, holdfast.ReasonCredentials, "%s", message)
}
