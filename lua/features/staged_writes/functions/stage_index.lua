-- writes: return the unfinished writes of a queue, oldest first, for processes that complete abandoned ones.
-- KEYS 1 meta   -> packed rows {write, state, home, query, ms since the last change, pending queues, keep ms, ttl ms,
-- changes}
-- An expired write is deleted here with its remaining keys. Bound: WRITES_MAX writes, and QUEUES_SHOWN queues
-- of each.

-- write_reports: return the reports of the last finished writes of this home, newest first.
-- KEYS 1 meta   ARGV 1 packed {first, count}   -> packed rows
--   {write, query, epoch ms, jobs, others, facts, {jobs, others} in this queue, {queue, jobs, others} of others,
--   repeats}
-- write_report: add the report of a save that staged nothing, or that repeated a write. KEYS 1 meta
--   ARGV 1 packed {write, query, jobs, others, facts, {jobs, others} in this queue, rows of others, repeated 0|1}
--   -> its epoch ms. repeated: `repeats` of its row is the number of such reports of this write until now; an earlier one
--   is found among the last SEARCHED.
-- Bound: the count, at most REPORTS_SHOWN; SEARCHED reports.

local S = G.staging
local REPORT = G.rows.write_report
local WRITES_MAX, QUEUES_SHOWN, REPORTS_SHOWN, SEARCHED = 50, 100, 100, 200

G.export('writes', { 'allow-oom' }, function(q)
  local now, rows = G.now(q), {}
  for _, id in ipairs(redis.call('ZRANGE', q.writes, 0, WRITES_MAX - 1)) do
    local w = S.write(q, id)
    local h = G.pick(w.manifest, 'state', 'home', 'query', 'at', 'keep', 'ttl', 'changes')
    if h.state then
      rows[#rows + 1] = G.new.write({
        id = id, state = h.state, home = h.home or '', query = h.query or '',
        idle = math.max(0, now - G.count_of(h.at)), queues = S.queues_of(w, QUEUES_SHOWN), keep = G.count_of(h.keep),
        ttl = G.count_of(h.ttl), changes = G.count_of(h.changes),
      })
    elseif not S.delete_some(w) then
      S.finish(q, w, '', 0)
    end
  end
  return rows
end)

G.export('write_reports', { 'no-writes' }, function(q, r)
  local rows, last = {}, r.first + math.min(r.count, REPORTS_SHOWN) - 1
  for _, member in ipairs(redis.call('LRANGE', q.write_reports, r.first, last)) do
    local row = G.unpacked(member)
    if #row > 0 then rows[#rows + 1] = row end
  end
  return rows
end)

-- Return how often the write was repeated before, as its last report states.
local function repeats_before(q, id)
  for _, member in ipairs(redis.call('LRANGE', q.write_reports, 0, SEARCHED - 1)) do
    local row = string.find(member, id, 1, true) and G.unpacked(member) or {}
    if row[REPORT.id] == id then return G.count_of(row[REPORT.repeats]) end
  end
  return 0
end

G.export('write_report', { 'allow-oom' }, function(q, r)
  local now = G.now(q)
  S.add_report(q, G.new.write_report({
    id = r.write, query = r.query, at = now, jobs = r.jobs, others = r.others, facts = r.facts,
    own = r.own, queues = r.queues,
    repeats = r.repeated == 1 and repeats_before(q, r.write) + 1 or 0,
  }))
  return now
end)
