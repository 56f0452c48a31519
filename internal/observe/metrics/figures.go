package metrics

import "github.com/prometheus/client_golang/prometheus"

// Snapshot is how things stand.
type Snapshot struct {
	Sessions     int // that clients may use
	Runners      int // counted against the limit
	Pooled       int // of these, ready for sessions to come
	Limit        int // of runners; 0 is none
	PoolSize     int // that is aimed at
	SpoolEntries int
	SpoolBytes   int64
	LostArchives int64 // since the start
}

// figures asks for a snapshot at each scrape, so that no figure is old.
type figures struct{ snapshot func() Snapshot }

var (
	sessions = desc("sessions", "Sessions that clients may use.")
	runners  = desc("runners", "Runners that count against the limit: of sessions, of the pool, being made or removed.")
	limit    = desc("runners_limit", "SANDBOX_MAX_SESSIONS; 0 is no limit.")
	pooled   = desc("pool_ready", "Runners of the pool that are ready for sessions to come.")
	poolSize = desc("pool_size", "SANDBOX_POOL_SIZE.")
	entries  = desc("spool_entries", "Archives and deletions that wait for their store.")
	spooled  = desc("spool_bytes", "Disk space that they take.")
	lost     = desc("archives_lost_total", "Workspaces that could not be kept.")
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, nil, nil)
}

func (f figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sessions, runners, limit, pooled, poolSize, entries, spooled, lost} {
		ch <- d
	}
}

func (f figures) Collect(ch chan<- prometheus.Metric) {
	s := f.snapshot()
	gauge := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v))
	}
	gauge(sessions, int64(s.Sessions))
	gauge(runners, int64(s.Runners))
	gauge(limit, int64(s.Limit))
	gauge(pooled, int64(s.Pooled))
	gauge(poolSize, int64(s.PoolSize))
	gauge(entries, int64(s.SpoolEntries))
	gauge(spooled, s.SpoolBytes)
	ch <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(s.LostArchives))
}
