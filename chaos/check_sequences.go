package chaos

import "sort"

// checkSequences checks I8: of one sequence no two ranges share a value, and a
// range that was answered before another was asked for lies below it.
func checkSequences(records []Record, f *findings) {
	sequences := map[string][]span{}
	for i := range records {
		r := &records[i]
		if r.Op != OpNext || r.Outcome != OK {
			continue
		}
		if r.First < 1 || int64(r.Last-r.First)+1 != r.Count {
			f.add("I8", []*Record{r}, "%d values of %q were asked for, and %d to %d were answered", r.Count, r.Name, r.First, r.Last)
			continue
		}
		sequences[r.Name] = append(sequences[r.Name], span{r.Invoke, r.Return, int64(r.First), int64(r.Last), r})
	}
	for name, spans := range sequences {
		checkRising(spans, func(earlier, later span) {
			f.add("I8", []*Record{earlier.record, later.record},
				"%q gave %d to %d before %d to %d was asked for", name, earlier.first, earlier.last, later.first, later.last)
		})
		sort.Slice(spans, func(i, j int) bool { return spans[i].first < spans[j].first })
		for i := 1; i < len(spans); i++ {
			if before := spans[i-1]; before.last >= spans[i].first {
				f.add("I8", []*Record{before.record, spans[i].record}, "%q gave a value twice: %d to %d, and %d to %d",
					name, before.first, before.last, spans[i].first, spans[i].last)
				// The longer of the two stays the one to compare with.
				if before.last > spans[i].last {
					spans[i] = before
				}
			}
		}
	}
}
