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

// asker returns a function that sends a request to the proxy, with a header of more,
// and returns the answer's status and the beginning of its text.
func asker(t *testing.T, c *http.Client, address string) func(method, path, body string, more ...string) (int, string) {
	return func(method, path, body string, more ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range more {
			req.Header.Set("X-More", header)
		}
		switch {
		case strings.HasPrefix(body, "{"):
			req.Header.Set("Content-Type", "application/json")
		case body != "":
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return resp.StatusCode, string(text)
	}
}

// TestSocketProxy leads a session's life through the proxy, streams that last
// included, and tries to get more out of it.
func TestSocketProxy(t *testing.T) {
	wantsDocker(t)
	address := startProxy(t)
	// The service alone goes through it: the test looks and cleans up past it.
	direct := os.Getenv("DOCKER_HOST")
	t.Setenv("DOCKER_HOST", direct)
	must(0, os.Setenv("DOCKER_HOST", "tcp://"+address))
	s := startService(t)
	must(0, os.Setenv("DOCKER_HOST", direct))
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

	ask := asker(t, s.http, address)
	for _, call := range []string{
		"GET /info", "GET /v1.41/version", "GET /events", "POST /build", "POST /volumes/create", "POST /networks/create", "GET /containers/x/json", "GET /containers/x/logs",
		"POST /containers/x/kill", "POST /containers/x/update", "POST /commit", "GET /containers/x/archive?path=/", "PUT /containers/x/archive?path=/", "POST /containers/x/attach",
		"POST /images/load", "DELETE /images/x", "POST /images/create?fromImage=evil&tag=latest", "POST /images/create?fromSrc=http://evil/x.tar", "POST /swarm/init", "POST /plugins/pull",
		"POST /images/create?%66romImage=&%66romSrc=http://evil/x.tar&repo=aivory-sandbox&fromImage=aivory-sandbox&tag=latest", "GET /images/debian:latest/json",
		"POST /containers/create?%6eame=other&name=aivory-sbx-" + randomHex(), "GET /containers/json?all=1", "GET /containers/json", "GET /v1.23/_ping",
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
	removed := "/containers/" + strings.TrimPrefix(name, "/containers/create?name=") + "?force=1"
	// Until 1.23 the engine took a container's walls from a start, too.
	for _, path := range []string{"/v1.23/containers/%s/start", "/v1.41/containers/%s/start"} {
		path = strings.Replace(path, "%s", strings.TrimPrefix(name, "/containers/create?name="), 1)
		if status, text := ask("POST", path, `{"Privileged":true,"Binds":["/:/host"]}`); status != http.StatusForbidden {
			t.Errorf("%s with settings: %d %s", path, status, text)
		}
	}
	if status, text := ask("DELETE", removed, ""); status != http.StatusNoContent {
		t.Errorf("removing it: %d %s", status, text)
	}
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for what, body := range map[string]string{
		"privileged":                                       change(`"Binds":null`, `"Privileged":true`),
		"privileged, spelled otherwise":                    change(`"Binds":null`, `"PRIVILEGED" : true`),
		"privileged, in disguise":                          change(`"Binds":null`, `"Privil\u0065ged":true`),
		"privileged, in a second place":                    change(`}}`, `},"hostconfig":{"privileged":true}}`),
		"a host mount":                                     change(`"Binds":null`, `"Binds":["/:/host"]`),
		"a mount of the other kind":                        change(`"Binds":null`, `"Mounts":[{"Type":"bind","Source":"/","Target":"/h"}]`),
		"a host mount, by a letter that Go takes for an s": change(`"Binds":null`, "\"Bind\u017f\":[\"/:/host\"]"),
		"a network, by a letter that Go takes for a k":     change(`"Binds":null`, "\"Networ\u212aMode\":\"host\""),
		"a device":                     change(`"Binds":null`, `"Devices":[{"PathOnHost":"/dev/sda"}]`),
		"a capability":                 change(`"Binds":null`, `"CapAdd":["SYS_ADMIN"]`),
		"another image":                change(`aivory-sandbox:latest`, `debian:latest`),
		"another image beside it":      change(`"User"`, `"image":"debian:latest","User"`),
		"root":                         change(`65534:65534`, `0:0`),
		"the host's network":           change(`"NetworkMode":"none"`, `"NetworkMode":"host"`),
		"a network":                    change(`"NetworkMode":"none"`, `"NetworkMode":"bridge"`),
		"the host's processes":         change(`"Binds":null`, `"PidMode":"host"`),
		"another's processes":          change(`"Binds":null`, `"PidMode":"container:x"`),
		"the host's memory":            change(`"IpcMode":"private"`, `"IpcMode":"host"`),
		"no seccomp":                   change(`"no-new-privileges"`, `"no-new-privileges","seccomp=unconfined"`),
		"new privileges":               change(`"no-new-privileges"`, `"apparmor=x"`),
		"no security options":          change(`"Binds":null`, `"securityopt":[]`),
		"all capabilities":             change(`["ALL"]`, `[]`),
		"a capability that is no list": change(`"Binds":null`, `"CapAdd":"SYS_ADMIN"`),
		"new privileges, as a number":  change(`"no-new-privileges"`, `"no-new-privileges","no-new-privileges=0"`),
		"a label":                      change(`"no-new-privileges"`, `"no-new-privileges","label=type:spc_t"`),
		"cgroups to write to":          change(`"no-new-privileges"`, `"no-new-privileges","seccomp={}","writable-cgroups=true"`),
		"output for the network":       change(`"Binds":null`, `"LogConfig":{"Type":"syslog","Config":{"syslog-address":"udp://127.0.0.1:9"}}`),
		"output for it, in disguise":   change(`"Binds":null`, `"logconfig":{"Type":"none","Config":null,"type":"gelf"}`),
		"what is too long to look at":  change(`"Cmd"`, `"Env":["A=`+strings.Repeat("x", 200000)+`"],"Cmd"`),
	} {
		if status, text := ask("POST", name, body); status < 400 || status == http.StatusConflict || status == http.StatusInternalServerError {
			t.Errorf("%s: %d %s", what, status, text)
			_, _ = ask("DELETE", removed, "")
		}
	}
	for _, other := range []string{"/containers/create?name=other", strings.Replace(name, "?", "?name=other&", 1)} {
		if status, text := ask("POST", other, good); status != http.StatusForbidden {
			t.Errorf("another name, %s: %d %s", other, status, text)
			_, _ = ask("DELETE", "/containers/other?force=1", "")
		}
	}
	// What comes last does not fit into the proxy's memory, beside long headers.
	long, header := `,"Env":["A=`+strings.Repeat("x", 110_000)+`"],`, strings.Repeat("h", 30_000)
	if status, text := ask("POST", name, strings.TrimSuffix(good, "}")+long+`"hostconfig":{"Privileged":true}}`, header); status != http.StatusForbidden {
		t.Errorf("privileged, behind much else: %d %s", status, text)
		_, _ = ask("DELETE", removed, "")
	}
	if status, text := ask("POST", "/containers/aivory-sbx-"+session.id+"/exec", `{"Cmd":["id"],"User":"1000:1000"`+long+`"Privileged":true}`, header); status != http.StatusForbidden {
		t.Errorf("a privileged command, behind much else: %d %s", status, text)
	}
	// A form has the last word over a query.
	if status, text := ask("POST", "/images/create?fromImage=aivory-sandbox&tag=latest", "fromImage=&fromSrc=http://evil/x.tar&repo=aivory-sandbox"); status != http.StatusForbidden {
		t.Errorf("an image, with a form: %d %s", status, text)
	}
	for what, body := range map[string]string{
		"root": `{"Cmd":["id"],"User":"0"}`, "nobody said who": `{"Cmd":["id"]}`, "privileged": `{"Cmd":["id"],"User":"1000:1000","Privileged":true}`,
		"two users": `{"Cmd":["id"],"User":"1000:1000","user":"0"}`,
	} {
		if status, text := ask("POST", "/containers/aivory-sbx-"+session.id+"/exec", body); status != http.StatusForbidden {
			t.Errorf("a command as %s: %d %s", what, status, text)
		}
	}
	session.alive(t)
}

// TestSocketProxyOthers: whatever else runs on the engine is out of reach.
func TestSocketProxyOthers(t *testing.T) {
	wantsDocker(t)
	other := dockerSays(t, "run", "-d", "--rm", "--name", "aivory-test-other-"+randomHex()[:8], "--network", "none", "--user", "1000:1000", "--entrypoint", "sleep", proxyImage, "infinity")
	t.Cleanup(func() { dockerSays(t, "rm", "-f", other) })
	name := strings.TrimPrefix(dockerSays(t, "inspect", "-f", "{{.Name}}", other), "/")
	address := startProxy(t)
	c := newHTTPClient()
	ask := asker(t, c, address)
	for _, handle := range []string{other, other[:12], name, "aivory-sbx-" + other[:32] + "x"} {
		for _, call := range []string{"POST /containers/%s/exec", "POST /containers/%s/start", "DELETE /containers/%s", "DELETE /v1.41/containers/%s?force=1"} {
			method, path, _ := strings.Cut(call, " ")
			body := ""
			if strings.HasSuffix(path, "exec") {
				body = `{"Cmd":["id"],"User":"1000:1000"}`
			}
			if status, text := ask(method, strings.Replace(path, "%s", handle, 1), body); status != http.StatusForbidden {
				t.Errorf("%s with %s: %d %s", call, handle, status, text)
			}
		}
	}
	if _, text := ask("GET", "/containers/json?all=1&filters=%7B%22label%22%3A%7B%22aivory.sandbox%3D1%22%3Atrue%7D%7D", ""); strings.Contains(text, name) {
		t.Errorf("the list of runners shows it: %s", text)
	}
	if running := dockerSays(t, "inspect", "-f", "{{.State.Running}}", other); running != "true" {
		t.Errorf("it runs: %s", running)
	}

	// HTTP/2 has bodies that no header tells of.
	var h2 http.Protocols
	h2.SetUnencryptedHTTP2(true)
	c.Transport = &http.Transport{DisableKeepAlives: true, Protocols: &h2}
	resp, err := c.Get("http://" + address + "/_ping")
	if err == nil {
		_ = resp.Body.Close()
		t.Errorf("HTTP/2 is answered: %s", resp.Status)
	}
}
