package runner

import "errors"

var (
	// ErrNotFound means that the runner does not exist or is not running.
	ErrNotFound = errors.New("runner not found")
	// ErrProtocol means that what came up the stream breaks the protocol.
	ErrProtocol = errors.New("runner protocol breach")
	// ErrLost means that the agent is gone: its stream ended, or it said
	// nothing for too long. Dialling again starts a new one.
	ErrLost = errors.New("runner agent lost")
	// ErrBadArchive means that an archive could not be read to its end.
	ErrBadArchive = errors.New("workspace archive is broken")
	// ErrTooLarge means that a packed workspace exceeds its limit.
	ErrTooLarge = errors.New("workspace archive too large")
)
