package api

import (
	"net/http"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/session"
)

// sessionInfo is what a client reads about a session.
type sessionInfo struct {
	ID         string    `json:"session_id"`
	State      string    `json:"state"`
	Created    time.Time `json:"created_at"`
	Age        float64   `json:"age_seconds"`
	IdleTTL    float64   `json:"idle_ttl_seconds"`
	IdleLeft   float64   `json:"idle_left_seconds"`
	ArchiveKey string    `json:"archive_key"`
	Provider   string    `json:"storage_provider"`
	Usage      struct {
		Runs   int64   `json:"runs"`
		Wall   float64 `json:"wall_seconds"`
		CPU    float64 `json:"cpu_seconds"`
		MaxRSS int64   `json:"peak_memory_bytes"`
	} `json:"usage"`
}

func describeSession(s session.Info, now time.Time) sessionInfo {
	i := sessionInfo{
		ID: s.ID, State: s.State, Created: s.Created.UTC().Truncate(time.Millisecond), Age: inSeconds(max(now.Sub(s.Created), 0)),
		IdleTTL: inSeconds(s.IdleTTL), IdleLeft: inSeconds(s.IdleLeft), ArchiveKey: s.ArchiveKey, Provider: s.Provider,
	}
	i.Usage.Runs, i.Usage.MaxRSS = s.Usage.Runs, s.Usage.MaxRSS
	i.Usage.Wall, i.Usage.CPU = inSeconds(s.Usage.Wall), inSeconds(s.Usage.CPU)
	return i
}

// inSeconds is d to the millisecond, of which nobody wants more than three places.
func inSeconds(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond).Milliseconds()) / 1000
}

func (a *api) listSessions(w *response, _ *http.Request, _ pathVars) error {
	now := time.Now()
	list := []sessionInfo{} // [], not null
	for _, s := range a.sessions.Sessions() {
		list = append(list, describeSession(s, now))
	}
	return w.sendJSON(http.StatusOK, struct {
		Sessions []sessionInfo `json:"sessions"`
	}{list})
}

func (a *api) showSession(w *response, _ *http.Request, vars pathVars) error {
	id := string(vars)
	if err := checkID(id); err != nil {
		return err
	}
	s, err := a.sessions.Session(id)
	if err != nil {
		return err
	}
	return w.sendJSON(http.StatusOK, describeSession(s, time.Now()))
}

func (a *api) metrics(w *response, r *http.Request, _ pathVars) error {
	a.cfg.Metrics.ServeHTTP(w, r)
	return nil
}
