-- regain: after a lost reply or a reconnect, a worker asks for the jobs that pend for it and that it does not know.
-- KEYS 1 meta   ARGV 1 packed {consumer, known entries, want, quiet, cursor}   -> packed {now, jobs, dropped, cursor}
-- Bound: one page of 200 pending entries; call again with the cursor until it is ''.
-- Only what pends for this very consumer is touched; each job gets a new fencing token.

local PAGE = 200

G.export('regain', { 'allow-oom' }, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local consumer, want, cursor = request[1], request[3], request[5]
  local known = {}
  for _, entry in ipairs(request[2]) do known[entry] = true end
  local taking = G.taking(q, G.now(q), consumer, request[4])
  taking.regain = true
  local from = cursor == '' and '-' or '(' .. cursor
  local pending = redis.pcall('XPENDING', q.stream, G.GROUP, from, '+', PAGE, consumer)
  if pending.err then pending = {} end
  local next_cursor = #pending == PAGE and pending[PAGE][1] or ''
  for _, p in ipairs(pending) do
    if not known[p[1]] then
      if #taking.jobs >= want then
        next_cursor = ''
        break
      end
      local found = redis.call('XRANGE', q.stream, p[1], p[1])[1]
      local id = found and G.entry_job(found[2])
      if id then G.activate(q, taking, id, p[1]) else G.drop(taking, nil, p[1], 'a stream entry without a job id') end
    end
  end
  G.settle_entries(q, taking.settled)
  return cmsgpack.pack({ taking.now, taking.jobs, taking.dropped, next_cursor })
end)
