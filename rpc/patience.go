package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

type writerKey struct{}

// writable lets the handlers below bound how long a write may take.
func writable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), writerKey{}, http.NewResponseController(w))))
	})
}

// within bounds one write: a peer that takes nothing for so long has its stream
// broken off, since nothing else would ever end the wait. What carries no
// deadlines waits on, as memory's network does.
func within(ctx context.Context, patience time.Duration, write func() error) error {
	writer, ok := ctx.Value(writerKey{}).(*http.ResponseController)
	if !ok {
		return write()
	}
	if err := writer.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		if errors.Is(err, http.ErrNotSupported) {
			return write()
		}
		return fmt.Errorf("bound a write: %w", err)
	}
	if err := write(); err != nil {
		return err
	}
	if err := writer.SetWriteDeadline(time.Time{}); err != nil {
		return fmt.Errorf("unbound a write: %w", err)
	}
	return nil
}
