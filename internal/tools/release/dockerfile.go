package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// settings reads what the last stage of a Dockerfile says of the image, not of its
// files. It knows the few instructions that ours have, one setting in each, and
// refuses others, so that none is left out without a word.
func settings(file string) (v1.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return v1.Config{}, err
	}
	var c v1.Config
	for line := range strings.SplitSeq(joined(string(text)), "\n") {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.TrimSpace(rest)
		switch {
		case word == "" || word[0] == '#' || word == "ARG" || word == "RUN" || word == "COPY":
		case word == "FROM":
			c = v1.Config{}
		default:
			if err := set(&c, word, rest); err != nil {
				return v1.Config{}, fmt.Errorf("%s: %s %s: %w", file, word, rest, err)
			}
		}
	}
	return c, nil
}

// joined puts lines together that end in a backslash. Comments between them
// belong to neither.
func joined(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		if part, more := strings.CutSuffix(strings.TrimRight(line, " \t\r\n"), `\`); more {
			b.WriteString(part)
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

func set(c *v1.Config, word, rest string) error {
	switch word {
	case "LABEL", "ENV":
		name, value, ok := strings.Cut(rest, "=")
		if !ok || name == "" || strings.ContainsAny(rest, " \"'$") {
			return fmt.Errorf("only name=value without quotes is understood")
		}
		if word == "ENV" {
			c.Env = append(c.Env, rest)
			return nil
		}
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[name] = value
	case "VOLUME":
		c.Volumes = map[string]struct{}{rest: {}}
	case "EXPOSE":
		c.ExposedPorts = map[string]struct{}{rest + "/tcp": {}}
	case "STOPSIGNAL":
		c.StopSignal = rest
	case "WORKDIR":
		c.WorkingDir = rest
	case "USER":
		c.User = rest
	case "ENTRYPOINT":
		return json.Unmarshal([]byte(rest), &c.Entrypoint)
	case "CMD":
		return json.Unmarshal([]byte(rest), &c.Cmd)
	case "HEALTHCHECK":
		health, err := healthcheck(rest)
		c.Healthcheck = health
		return err
	default:
		return fmt.Errorf("an instruction that is not understood")
	}
	return nil
}

func healthcheck(rest string) (*v1.HealthConfig, error) {
	options, command, ok := strings.Cut(rest, "CMD ")
	if !ok {
		return nil, fmt.Errorf("no CMD")
	}
	var h v1.HealthConfig
	for option := range strings.FieldsSeq(options) {
		name, value, _ := strings.Cut(option, "=")
		var err error
		switch name {
		case "--interval":
			h.Interval, err = time.ParseDuration(value)
		case "--timeout":
			h.Timeout, err = time.ParseDuration(value)
		case "--start-period":
			h.StartPeriod, err = time.ParseDuration(value)
		case "--retries":
			h.Retries, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("option %s is not understood", name)
		}
		if err != nil {
			return nil, err
		}
	}
	var args []string
	if err := json.Unmarshal([]byte(command), &args); err != nil {
		return nil, err
	}
	h.Test = append([]string{"CMD"}, args...)
	return &h, nil
}
