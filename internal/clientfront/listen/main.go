// Command listen serves a front of a service until it is interrupted, and says at
// its end how many requests went through the Go client.
//
//	listen SERVICE-URL ADDRESS LEAST-PERCENT
//
// It fails where a smaller part of the requests went through the client.
package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/hjxwz123/aivory-sandbox/internal/clientfront"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "listen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: listen SERVICE-URL ADDRESS LEAST-PERCENT")
	}
	least, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	front, err := clientfront.New(args[0])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := front.Serve(ctx, l); err != nil {
		return err
	}
	counts := front.Counts()
	for _, reason := range slices.Sorted(maps.Keys(counts.Passed)) {
		fmt.Printf("%5d passed on: %s\n", counts.Passed[reason], reason)
	}
	fmt.Printf("%d of %d requests went through the client\n", counts.Typed, counts.Total())
	if counts.Typed*100 < least*counts.Total() || counts.Total() == 0 {
		return fmt.Errorf("fewer than %d%% of the requests went through the client", least)
	}
	return nil
}
