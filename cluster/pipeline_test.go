package cluster

import (
	"testing"

	"github.com/hashicorp/raft"
)

// stuckPipeline is raft's network pipeline as far as it matters: a request waits
// until the answer before it has been taken off.
type stuckPipeline struct {
	raft.AppendPipeline
	done chan raft.AppendFuture
}

func (p *stuckPipeline) Consumer() <-chan raft.AppendFuture { return p.done }
func (p *stuckPipeline) Close() error                       { return nil }

// Raft stops reading answers while requests are still sent; neither these nor the
// end may hang.
func TestPipelineWhoseAnswersAreNotRead(t *testing.T) {
	inner := &stuckPipeline{done: make(chan raft.AppendFuture)}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		p.run()
		close(ended)
	}()
	futures := make([]raft.AppendFuture, 100)
	for i := range futures {
		futures[i] = new(fakeFuture)
		inner.done <- futures[i]
	}
	for i := range 50 { // and in their order, if they are read after all
		if got := <-p.Consumer(); got != futures[i] {
			t.Fatalf("answer %d is another one", i)
		}
	}
	p.Close()
	p.Close()
	<-ended
}

type fakeFuture struct {
	raft.AppendFuture
	_ int // so that no two have the same address
}
