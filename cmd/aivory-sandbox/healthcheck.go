package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
)

// healthTimeout is short enough for a container engine's own health checks.
const healthTimeout = 10 * time.Second

// healthcheck asks the service that the environment configures how it is. It
// returns an error unless the service answers and its engine does.
func healthcheck(ctx context.Context, environ []string) error {
	address, err := config.ListenAddress(environ)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(address)+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("cannot ask for health: %w", err)
	}
	// No proxy: the service is on this machine.
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return fmt.Errorf("not healthy: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("not healthy: status %d: %q", resp.StatusCode, body)
	}
	return nil
}

// reachable turns an address to listen on into one to connect to.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	switch ip := net.ParseIP(host); {
	case host == "", ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
