package cluster

import (
	"sync"

	"github.com/hashicorp/raft"
)

// replicator is the transport that Raft gets. Its pipelines cannot lock up.
//
// Raft stops reading a pipeline's answers at the first that is not a success: one
// of a newer term, or of a follower whose log does not fit. If it is just sending
// the next request then, the network transport waits for room in the pipeline,
// which only comes when an answer is read. The two wait for each other for ever:
// the follower gets nothing any more from a leader that goes on, and a
// shutdown never ends (raft v1.7.3, replication.go: pipelineReplicate and
// pipelineDecode). Here an answer is always taken off the pipeline.
type replicator struct{ *transport }

// The method set must have every optional method that Raft looks for.
var (
	_ raft.WithPreVote = replicator{}
	_ raft.WithClose   = replicator{}
)

// AppendEntriesPipeline implements raft.Transport.
func (r replicator) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	inner, err := r.transport.AppendEntriesPipeline(id, addr)
	if err != nil {
		return nil, err
	}
	p := &pipeline{AppendPipeline: inner, answers: make(chan raft.AppendFuture), closed: make(chan struct{})}
	go p.run()
	return p, nil
}

// pipeline keeps the answers that Raft has not read yet.
type pipeline struct {
	raft.AppendPipeline
	answers chan raft.AppendFuture
	closed  chan struct{}
	once    sync.Once
}

func (p *pipeline) run() {
	var waiting []raft.AppendFuture
	for {
		var answers chan raft.AppendFuture // nil while there is none to give
		var first raft.AppendFuture
		if len(waiting) > 0 {
			answers, first = p.answers, waiting[0]
		}
		select {
		case f := <-p.AppendPipeline.Consumer():
			waiting = append(waiting, f)
		case answers <- first:
			waiting = waiting[:copy(waiting, waiting[1:])]
		case <-p.closed:
			return
		}
	}
}

// Consumer implements raft.AppendPipeline.
func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.answers }

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return p.AppendPipeline.Close()
}
