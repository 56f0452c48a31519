//go:build integration

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// proxyImage is what scripts/deploy.sh makes.
const proxyImage = "aivory-haproxy:3.0"

// startProxy starts HAProxy with the rules that are shipped, before the real
// engine, and returns its address.
func startProxy(t *testing.T) string {
	t.Helper()
	rules, err := filepath.Abs("../../deploy/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if socket == "" {
		socket = "/var/run/docker.sock"
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := "aivory-test-proxy-" + randomHex()[:8]
	cmd := exec.Command("docker", "run", "--rm", "--name", name, "--network", "host", "--read-only", "--cap-drop", "ALL", "--user", "0:0",
		"-e", "PROXY_BIND="+address, "-e", "DOCKER_SOCKET=/var/run/docker.sock", "-e", "SANDBOX_IMAGE=aivory-sandbox:latest",
		"-v", socket+":/var/run/docker.sock", "-v", rules+":/usr/local/etc/haproxy/haproxy.cfg:ro", proxyImage)
	var out tailWriter
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		remove := exec.Command("docker", "rm", "-f", name)
		remove.Env = append(os.Environ(), "DOCKER_HOST=unix://"+socket)
		if text, err := remove.CombinedOutput(); err != nil {
			t.Errorf("cannot remove the proxy: %v: %s", err, text)
		}
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("HAProxy said:\n%s", out.text())
		}
	})
	waitUntil(t, "the proxy", func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	return address
}

// TestSocketProxy leads a session's life through the proxy, streams that last
// included, and tries to get more out of it.
func TestSocketProxy(t *testing.T) {
	wantsDocker(t)
	address := startProxy(t)
	t.Setenv("DOCKER_HOST", "tcp://"+address)
	s := startService(t)
	session := s.session(t)
	if r := session.run(t, "print('x' * 30000, end='')", 0); len(r.Stdout) != 30000 || r.Exit != 0 {
		t.Errorf("a run: %v", r)
	}
	if a := session.put("big", bytes.Repeat([]byte("abc"), 1<<20)); a.status != 200 {
		t.Errorf("an upload: %v", a)
	}
	if got := session.read(t, "big"); len(got) != 3<<20 {
		t.Errorf("a download of %d bytes", len(got))
	}

	ask := func(method, path string, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return resp.StatusCode, string(text)
	}
	for _, call := range []string{
		"GET /info", "GET /v1.41/version", "GET /events", "POST /build", "POST /volumes/create", "POST /networks/create", "GET /containers/x/json", "GET /containers/x/logs",
		"POST /containers/x/kill", "POST /containers/x/update", "POST /commit", "GET /containers/x/archive?path=/", "PUT /containers/x/archive?path=/", "POST /containers/x/attach",
		"POST /images/load", "DELETE /images/x", "POST /images/create?fromImage=evil&tag=latest", "POST /images/create?fromSrc=http://evil/x.tar", "POST /swarm/init", "POST /plugins/pull",
		"POST /v1.41//containers/create", "POST /v1.41/x/../containers/create", "POST /containers%2Fcreate", "POST /v1.41/containers/create/", "PUT /containers/create",
	} {
		method, path, _ := strings.Cut(call, " ")
		if status, text := ask(method, path, ""); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", call, status, text)
		}
	}

	const good = `{"Image":"aivory-sandbox:latest","User":"65534:65534","Cmd":["true"],"HostConfig":{"NetworkMode":"none","CapDrop":["ALL"],"SecurityOpt":["no-new-privileges"],"Binds":null,"IpcMode":"private"}}`
	name := "/containers/create?name=aivory-sbx-" + randomHex()
	status, text := ask("POST", name, good)
	var made struct{ ID string }
	if err := json.Unmarshal([]byte(text), &made); status != http.StatusCreated || err != nil {
		t.Fatalf("a container as runners are: %d %s", status, text)
	}
	if status, text := ask("DELETE", "/containers/"+made.ID+"?force=1", ""); status != http.StatusNoContent {
		t.Errorf("removing it: %d %s", status, text)
	}
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for what, body := range map[string]string{
		"privileged":                    change(`"Binds":null`, `"Privileged":true`),
		"privileged, spelled otherwise": change(`"Binds":null`, `"PRIVILEGED" : true`),
		"privileged, in disguise":       change(`"Binds":null`, `"Privil\u0065ged":true`),
		"privileged, in a second place": change(`}}`, `},"hostconfig":{"privileged":true}}`),
		"a host mount":                  change(`"Binds":null`, `"Binds":["/:/host"]`),
		"a mount of the other kind":     change(`"Binds":null`, `"Mounts":[{"Type":"bind","Source":"/","Target":"/h"}]`),
		"a device":                      change(`"Binds":null`, `"Devices":[{"PathOnHost":"/dev/sda"}]`),
		"a capability":                  change(`"Binds":null`, `"CapAdd":["SYS_ADMIN"]`),
		"another image":                 change(`aivory-sandbox:latest`, `debian:latest`),
		"another image beside it":       change(`"User"`, `"image":"debian:latest","User"`),
		"root":                          change(`65534:65534`, `0:0`),
		"the host's network":            change(`"NetworkMode":"none"`, `"NetworkMode":"host"`),
		"a network":                     change(`"NetworkMode":"none"`, `"NetworkMode":"bridge"`),
		"the host's processes":          change(`"Binds":null`, `"PidMode":"host"`),
		"another's processes":           change(`"Binds":null`, `"PidMode":"container:x"`),
		"the host's memory":             change(`"IpcMode":"private"`, `"IpcMode":"host"`),
		"no seccomp":                    change(`"no-new-privileges"`, `"no-new-privileges","seccomp=unconfined"`),
		"new privileges":                change(`"no-new-privileges"`, `"apparmor=x"`),
		"no security options":           change(`"Binds":null`, `"securityopt":[]`),
		"all capabilities":              change(`["ALL"]`, `[]`),
		"what is too long to look at":   change(`"Cmd"`, `"Env":["A=`+strings.Repeat("x", 200000)+`"],"Cmd"`),
	} {
		if status, text := ask("POST", name, body); status < 400 || status == http.StatusConflict || status == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", what, status, text)
			_, _ = ask("DELETE", "/containers/"+strings.TrimPrefix(name, "/containers/create?name=")+"?force=1", "")
		}
	}
	if status, text := ask("POST", "/containers/create?name=other", good); status != http.StatusForbidden {
		t.Errorf("another name: %d %s", status, text)
	}
	ids, err := s.containers()
	if err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	for what, body := range map[string]string{
		"root": `{"Cmd":["id"],"User":"0"}`, "nobody said who": `{"Cmd":["id"]}`, "privileged": `{"Cmd":["id"],"User":"1000:1000","Privileged":true}`,
		"two users": `{"Cmd":["id"],"User":"1000:1000","user":"0"}`,
	} {
		if status, text := ask("POST", "/containers/"+ids[0]+"/exec", body); status != http.StatusForbidden {
			t.Errorf("a command as %s: %d %s", what, status, text)
		}
	}
	session.alive(t)
}
