-- event_slice: return events in order, with the number ever written, so that callers can detect trimmed events.
-- KEYS 1 meta   ARGV 1 packed {after, count, ids only 0|1}   -> packed {added, kept, last id, entries}
-- added: events ever written; kept: events still in the stream (the newest); entries after the id `after`: {id,
-- fields}.
-- Bound: `count` entries.

G.export('event_slice', { 'no-writes' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  if redis.call('EXISTS', q.events) == 0 then return cmsgpack.pack({ 0, 0, '0-0', {} }) end
  local info, facts = redis.call('XINFO', 'STREAM', q.events), {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  local entries = {}
  if r[2] > 0 then entries = redis.call('XRANGE', q.events, '(' .. r[1], '+', 'COUNT', r[2]) end
  if r[3] == 1 then
    for i = 1, #entries do entries[i] = { entries[i][1], {} } end
  end
  return cmsgpack.pack({ facts['entries-added'], facts['length'], facts['last-generated-id'], entries })
end)
