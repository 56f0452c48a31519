package docker

import (
	"maps"
	"slices"
	"sync"
)

// streams are the open ones of a driver. An engine may keep one open whose
// container it has removed: with gVisor, a command's end can come after it.
type streams struct {
	mu   sync.Mutex
	open map[string]map[*stream]struct{} // by the container's handle
}

// add remembers a new stream until it is closed.
func (all *streams) add(id string, s *stream) {
	s.closed = func() { all.forget(id, s) }
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open == nil {
		all.open = map[string]map[*stream]struct{}{}
	}
	if all.open[id] == nil {
		all.open[id] = map[*stream]struct{}{}
	}
	all.open[id][s] = struct{}{}
}

func (all *streams) forget(id string, s *stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if delete(all.open[id], s); len(all.open[id]) == 0 {
		delete(all.open, id)
	}
}

// end closes the streams to a container that is gone.
func (all *streams) end(id string) {
	all.mu.Lock()
	left := slices.Collect(maps.Keys(all.open[id]))
	all.mu.Unlock()
	for _, s := range left {
		_ = s.Close()
	}
}
