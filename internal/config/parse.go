package config

import (
	"fmt"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/docker/go-units"
)

type dur = time.Duration

var (
	instancePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	modulePattern   = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`)
	secondsPattern  = regexp.MustCompile(`^\+?[0-9]+(\.[0-9]*)?$`)
)

// matches sets a text field to a value that ok takes.
func matches(field func(*Config) *string, ok func(string) bool) func(*Config, string) bool {
	return func(c *Config, v string) bool {
		if !ok(v) {
			return false
		}
		*field(c) = v
		return true
	}
}

// oneOf sets a text field to one of some words, in any case.
func oneOf(field func(*Config) *string, words ...string) func(*Config, string) bool {
	return func(c *Config, v string) bool {
		v = strings.ToLower(v)
		if !slices.Contains(words, v) {
			return false
		}
		*field(c) = v
		return true
	}
}

// path sets a field to an absolute path; a relative one is meant from the
// working directory.
func path(field func(*Config) *string) func(*Config, string) bool {
	return func(c *Config, v string) bool {
		abs, err := filepath.Abs(v)
		if err != nil {
			return false
		}
		*field(c) = abs
		return true
	}
}

// file is path, of a file that is there. Its content is looked at where it is used.
func file(field func(*Config) *string) func(*Config, string) bool {
	set := path(field)
	return func(c *Config, v string) bool {
		info, err := os.Stat(v)
		if err != nil || info.IsDir() {
			return false
		}
		if info.Mode().IsRegular() { // opening a pipe would wait, or take from it
			f, err := os.Open(v)
			if err != nil {
				return false
			}
			f.Close()
		}
		return set(c, v)
	}
}

func boolean(name string, field func(*Config) *bool) variable {
	return variable{
		name: name, keepsEmpty: true,
		accepts: "1, true, yes or on; 0, false, no, off or nothing",
		set: func(c *Config, v string) (ok bool) {
			*field(c), ok = parseBool(v)
			return ok
		},
	}
}

// count is a whole number from lo to hi.
func count(name string, field func(*Config) *int, lo, hi int) variable {
	return variable{
		name: name, accepts: fmt.Sprintf("a whole number from %d to %d", lo, hi),
		set: func(c *Config, v string) bool {
			n, err := strconv.Atoi(v)
			if err != nil || n < lo || n > hi {
				return false
			}
			*field(c) = n
			return true
		},
	}
}

// limit is a whole number; 0 or less lifts the limit.
func limit(name string, field func(*Config) *int) variable {
	const most = 1_000_000
	return variable{
		name: name, accepts: fmt.Sprintf("a whole number up to %d; 0 or less lifts the limit", most),
		set: func(c *Config, v string) bool {
			n, err := strconv.Atoi(v)
			if err != nil || n > most {
				return false
			}
			*field(c) = max(n, 0)
			return true
		},
	}
}

// bytes is a size from lo to hi.
func bytes[T int | int64](name string, field func(*Config) *T, lo, hi int64) variable {
	return variable{
		name: name, accepts: fmt.Sprintf("a size from %s to %s, such as 512m, 2G or bytes without a unit", sizeText(lo), sizeText(hi)),
		set: func(c *Config, v string) bool {
			var n int64
			if !parseSize(v, lo, hi, false, &n) {
				return false
			}
			*field(c) = T(n)
			return true
		},
	}
}

// sizeText writes a bound of a size: 20m rather than 20971520.
func sizeText(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{tib, "t"}, {gib, "g"}, {mib, "m"}, {kib, "k"}} {
		if n >= unit.size && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// seconds is a time in seconds, which may have a fraction.
func seconds(name string, field func(*Config) *dur, lo, hi int64) variable {
	return variable{
		name: name, accepts: fmt.Sprintf("seconds from %d to %d", lo, hi),
		set: func(c *Config, v string) bool {
			f, err := strconv.ParseFloat(v, 64)
			if !secondsPattern.MatchString(v) || err != nil || f < float64(lo) || f > float64(hi) {
				return false
			}
			*field(c) = dur(math.Round(f * float64(time.Second)))
			return true
		},
	}
}

// milliseconds is a time in whole milliseconds.
func milliseconds(name string, field func(*Config) *dur, lo, hi int64) variable {
	return variable{
		name: name, accepts: fmt.Sprintf("whole milliseconds from %d to %d", lo, hi),
		set: func(c *Config, v string) bool {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil || n < lo || n > hi {
				return false
			}
			*field(c) = dur(n) * time.Millisecond
			return true
		},
	}
}

// parseBool reads a boolean; known is false for a word that is neither.
func parseBool(v string) (on, known bool) {
	switch strings.ToLower(v) {
	case "1", "true", "yes", "on":
		return true, true
	case "", "0", "false", "no", "off":
		return false, true
	}
	return false, false
}

// parseSize reads a size as Docker's command line does. It leaves *n alone
// where the size is not within lo and hi; 0 may be accepted besides.
func parseSize(v string, lo, hi int64, zero bool, n *int64) bool {
	size, err := units.RAMInBytes(v)
	// A size beyond int64 comes out negative or as the largest, and out of range.
	if err != nil || ((size < lo || size > hi) && !(zero && size == 0)) {
		return false
	}
	*n = size
	return true
}

func setDiskSize(c *Config, v string) bool {
	var n int64
	if !parseSize(v, mib, 1024*tib, false, &n) {
		return false
	}
	c.DiskSize = v
	return true
}

// parseCPUs reads a number of CPUs as Docker's command line does: a decimal or
// a fraction of at most nine decimals.
func parseCPUs(v string) (nano int64, ok bool) {
	// A large exponent would cost a number of as many digits.
	if len(v) > 32 || strings.ContainsAny(v, "eEpP") {
		return 0, false
	}
	cpus, ok := new(big.Rat).SetString(v)
	if !ok {
		return 0, false
	}
	n := cpus.Mul(cpus, big.NewRat(1e9, 1))
	if !n.IsInt() || !n.Num().IsInt64() {
		return 0, false
	}
	nano = n.Num().Int64()
	return nano, nano == 0 || (nano >= 1e7 && nano <= 65536*1e9)
}

// parsePids reads a bound on tasks. Process 1, the agent and its forked child
// must fit in beside the program.
func parsePids(v string, n *int64) bool {
	pids, err := strconv.ParseInt(v, 10, 64)
	if err != nil || pids < -1 || (pids > 0 && pids < 16) || pids > math.MaxInt32 {
		return false
	}
	*n = max(pids, 0)
	return true
}

// parseNofile reads a bound on open files as Docker's command line does.
func parseNofile(v string, soft, hard *int64) bool {
	u, err := units.ParseUlimit("nofile=" + v)
	if err != nil {
		return false
	}
	for _, n := range []int64{u.Soft, u.Hard} {
		if n != -1 && (n < 64 || n > math.MaxInt32) {
			return false
		}
	}
	*soft, *hard = u.Soft, u.Hard
	return true
}

// parseModules reads dotted module names separated by commas.
func parseModules(v string) (modules []string, ok bool) {
	for name := range strings.SplitSeq(v, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !modulePattern.MatchString(name) {
			return nil, false
		}
		modules = append(modules, name)
	}
	return modules, true
}

func isListenAddress(v string) bool {
	host, port, err := net.SplitHostPort(v)
	if err != nil || !isPlain(host) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n <= math.MaxUint16
}

// isLoopbackAddress accepts an address to listen on that only this machine
// reaches.
func isLoopbackAddress(v string) bool {
	host, _, err := net.SplitHostPort(v)
	ip := net.ParseIP(host)
	return err == nil && isListenAddress(v) && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// isPlain refuses spaces and control characters, which no header, image
// reference or host name can carry.
func isPlain(v string) bool {
	return !strings.ContainsFunc(v, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar })
}
