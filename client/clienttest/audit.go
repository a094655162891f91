package clienttest

import (
	"context"

	"github.com/holdfast-dev/holdfast"
)

// GetMatrix answers with Matrix.
func (f *Fake) GetMatrix(ctx context.Context, _ holdfast.Caller) (out holdfast.AuditMatrix, err error) {
	err = f.do(ctx, Call{Method: "GetMatrix"}, func() error {
		out = f.Matrix
		return nil
	})
	return out, err
}
