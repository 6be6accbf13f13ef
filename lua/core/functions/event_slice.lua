-- event_slice: return events in order, with the number ever written, so that callers can detect trimmed events.
-- KEYS 1 meta   ARGV 1 packed {after, count, ids only 0|1}   -> packed {added, kept, last id, entries}
-- added: events ever written; kept: events still in the stream (the newest); entries after the id `after`: {id,
-- fields}.
-- Bound: `count` entries.

local EVENT = G.rows.event

G.export('event_slice', { 'no-writes' }, function(q, r)
  if redis.call('EXISTS', q.events) == 0 then
    return { added = 0, kept = 0, last = '0-0', entries = {} }
  end
  local entries, facts = {}, G.stream_facts(q.events)
  if r.count > 0 then entries = redis.call('XRANGE', q.events, '(' .. r.after, '+', 'COUNT', r.count) end
  if r.ids_only == 1 then
    for i = 1, #entries do entries[i] = G.new.event({ id = entries[i][EVENT.id], fields = {} }) end
  end
  return {
    added = facts['entries-added'], kept = facts['length'], last = facts['last-generated-id'], entries = entries,
  }
end)
