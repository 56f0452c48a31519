package runner

import (
	"context"
	"time"
)

// Outlast returns a context that ends grace after ctx does, with its cause, for
// drivers: an engine that is cut off within a call may leave half of what was
// asked for. The caller calls the function that comes with it.
func Outlast(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return lasting, func() { stop(); cancel(nil) }
}
