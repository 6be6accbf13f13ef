-- writes: return the unfinished writes of a queue, oldest first, for processes that complete abandoned ones.
-- KEYS 1 meta   -> packed rows {write, state, home, query, ms since the last change, pending queues, keep ms, ttl ms,
-- changes}
-- An expired write is deleted here with its remaining keys. Bound: WRITES_MAX writes, and QUEUES_SHOWN queues
-- of each.

-- write_reports: return the reports of the last finished writes of this home, newest first.
-- KEYS 1 meta   ARGV 1 packed {first, count}   -> packed rows
--   {write, query, epoch ms, jobs, others, facts, {jobs, others} in this queue, {queue, jobs, others} of others}
-- write_report: add the report of a save that staged nothing, or that repeated a write. KEYS 1 meta
--   ARGV 1 packed {write, query, jobs, others, facts}   -> its epoch ms
-- Bound: the count, at most REPORTS_SHOWN.

local S = G.staging
local WRITES_MAX, QUEUES_SHOWN, REPORTS_SHOWN = 50, 100, 100

G.export('writes', { 'allow-oom' }, function(keys)
  local q = G.queue(keys[1])
  local now, rows = G.now(q), {}
  for _, id in ipairs(redis.call('ZRANGE', q.writes, 0, WRITES_MAX - 1)) do
    local w = S.write(q, id)
    local h = redis.call('HMGET', w.manifest, 'state', 'home', 'query', 'at', 'keep', 'ttl', 'changes')
    if h[1] then
      rows[#rows + 1] = { id, h[1], h[2] or '', h[3] or '', math.max(0, now - G.count_of(h[4] or nil)),
        S.queues_of(w, QUEUES_SHOWN), G.count_of(h[5] or nil), G.count_of(h[6] or nil), G.count_of(h[7] or nil) }
    elseif not S.delete_some(w) then
      S.finish(q, w, '', 0)
    end
  end
  return cmsgpack.pack(rows)
end)

G.export('write_reports', { 'no-writes' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows, last = {}, r[1] + math.min(r[2], REPORTS_SHOWN) - 1
  for _, member in ipairs(redis.call('LRANGE', q.write_reports, r[1], last)) do
    local ok, row = pcall(cmsgpack.unpack, member)
    if ok and type(row) == 'table' then rows[#rows + 1] = row end
  end
  return cmsgpack.pack(rows)
end)

G.export('write_report', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local now = G.now(q)
  S.add_report(q, { r[1], r[2], now, r[3], r[4], r[5], { r[3], r[4] }, {} })
  return now
end)
