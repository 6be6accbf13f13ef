-- repair_group, repair_counters: the repairs of check_group and check_counters, checked again in the same step.
-- KEYS 1 meta   ARGV 1 packed group | counters (as for the check)
-- repair_group    -> packed kinds repaired; its parked jobs are started
-- repair_counters -> packed names of the counters set
-- Bound: as for the check.

local C = G.checks
local M = G.groups

-- Move the next sequence past sequences without a job; mark later gaps as skipped.
local function close_gaps(g, v)
  for _, seq in ipairs(v.missing) do
    if not v.jump or seq >= v.jump then redis.call('HSET', g.key, 'skip:' .. G.int(seq), '1') end
  end
  if v.jump then redis.call('HSET', g.key, 'nextSeq', G.int(v.jump)) end
end

G.export('repair_group', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local v, kinds = C.check_group(q, r), {}
  if not v or #v.rows == 0 then return cmsgpack.pack(kinds) end
  local name = r[1]
  if v.counter then redis.call('HSET', q.ordering, name, G.int(v.counter)) end
  if v.slots then redis.call('HSET', v.g.key, 'active', G.int(v.slots)) end
  if v.missing then close_gaps(v.g, v) end
  for i, row in ipairs(v.rows) do kinds[i] = row[1] end
  M.uncache(q, name)
  M.promote_parked(q, M.group(q, name), G.now(q))
  G.wake(q, 1)
  return cmsgpack.pack(kinds)
end)

G.export('repair_counters', { 'allow-oom' }, function(keys, args)
  local q, names = G.queue(keys[1]), {}
  for i, row in ipairs(C.find_wrong_counters(q, cmsgpack.unpack(args[1]))) do
    redis.call('SET', row[1] == 'id' and q.id or q.list_active, G.int(row[3]))
    names[i] = row[1]
  end
  return cmsgpack.pack(names)
end)
