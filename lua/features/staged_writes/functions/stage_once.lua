-- add_once: add jobs as the next rows of a sequence, each row once.
-- KEYS 1 meta
--   ARGV 1 packed {write, batch, sequence, number, keep ms, layout, partitions, before, piece}, 2 the argument of an add
-- -> packed {status, jobs, others}: 'added' = the rows that were not added before, 'already' = all of them were, 'gap' =
-- rows before them were not added, or the ledger has expired.
-- number: how many rows of the sequence, here and with this layout, are before these.   batch: -1, or the number of the
-- micro-batch of a streaming query: the ledger holds only the last one, and an older one is 'already'.
-- layout: number of the layout by which the caller chose this queue or partition, 0 = it has no partitions; false = the
-- user has named the partition.
-- partitions: how many that layout has.   before: rows of the sequence that were added by earlier layouts, in all
-- partitions; all callers with one layout must have found as many.   piece: how many calls were before this one, for
-- ledgers of version 0.1.0, which counted calls.
-- Idempotent. errors: OOM (not allow-oom), ERR layout (the queue has another one; nothing was added). Bound: the rows given.
-- once_counts: return how many rows of a sequence were added here, and keep the ledger for so long from now.
-- KEYS 1 meta   ARGV 1 packed {write, batch, sequence, keep ms}   -> packed {state, counts}
-- state: 'ok', 'over' = a later micro-batch has begun, 'unknown' = version 0.1.0 has written the ledger
-- counts: per layout, in their order: '<layout>:<partitions>:<before>:<rows>', as text joined by spaces
-- Idempotent. Bound: constant.
--
-- The ledger is P:write-once:<write>: `r<sequence>` has the counts. A partition that has taken over a layout refuses
-- callers with an earlier one (features/partitions/moving.lua), so only the last of the counts can change.

local ADDED_OTHER = G.rows.added_other
local ADD = G.requests.add
local COUNT = '(%d+):(%d+):(%d+):(%d+)$'

local function reply(status, jobs, others)
  return G.replies.add_once({ status = status, jobs = jobs or 0, others = others or 0 })
end

-- Return the counts of the layouts before the caller's as text, and the last count if it is that of its layout.
local function own_count(r, counts)
  local layout, partitions, before, rows = string.match(counts, COUNT)
  if not layout or G.count_of(layout) ~= (r.layout or 0) then return counts == '' and '' or counts .. ' ', nil end
  return string.gsub(counts, COUNT, ''), { partitions = G.count_of(partitions), before = G.count_of(before),
    rows = G.count_of(rows) }
end

local function save(q, r, ledger, earlier, rows)
  redis.call('HSET', ledger, 'r' .. r.sequence, table.concat({ earlier .. G.int(r.layout or 0), G.int(r.partitions),
    G.int(r.before), G.int(rows) }, ':'))
  redis.call('PEXPIRE', ledger, r.keep)
  G.record_temporary(q, 'write-once:' .. r.write, G.now(q), r.keep)
end

-- Return how many of the rows were added, given how many calls version 0.1.0 has made for the sequence.
local function count_calls(r, ledger, calls, added, last)
  if r.piece < calls then return math.max(added, last) end
  redis.call('HDEL', ledger, 'p' .. r.sequence)
  return added
end

-- Return the first row that is not added yet, as an index; or nil and the reply.
local function first_pending(q, r, ledger, rows)
  local name, calls_name = 'r' .. r.sequence, 'p' .. r.sequence
  local found = G.pick(ledger, name, calls_name)
  local earlier, count = own_count(r, found[name] or '')
  local added, last = count and count.rows or 0, r.number + #rows
  if count and (count.partitions ~= r.partitions or count.before ~= r.before) then return nil, reply('gap') end
  if found[calls_name] then
    local known = count_calls(r, ledger, G.count_of(found[calls_name]), added, last)
    if known > added then save(q, r, ledger, earlier, known) end
    added = known
  end
  if last <= added then return nil, reply('already') end
  if r.number > added then return nil, reply('gap') end
  return added - r.number + 1, earlier
end

G.export('add_once', {}, function(q, r)
  local refused = G.moving.check(q, r.layout)
  if refused then return refused end
  local ledger, batch = q.P .. 'write-once:' .. r.write, r.batch
  if batch >= 0 then
    local last = tonumber(redis.call('HGET', ledger, 'batch') or '')
    if last and batch < last then return reply('already') end
    if not last or batch > last then
      redis.call('UNLINK', ledger)
      redis.call('HSET', ledger, 'batch', G.int(batch))
      redis.call('PEXPIRE', ledger, r.keep)
    end
  end
  local request = cmsgpack.unpack(r.jobs)
  local rows = request[ADD.rows]
  local first, earlier = first_pending(q, r, ledger, rows)
  if not first then return earlier end
  local pending = rows
  if first > 1 then
    pending = {}
    for i = first, #rows do pending[#pending + 1] = rows[i] end
  end
  rawset(q, 'any_backlog', true)
  local _, results = G.add_rows(q, pending, request[ADD.quiet])
  save(q, r, ledger, earlier, r.number + #rows)
  local jobs = 0
  for i = 1, #results do
    if type(results[i]) == 'string' or results[i][ADDED_OTHER.outcome] == 'replaced' then jobs = jobs + 1 end
  end
  return reply('added', jobs, #results - jobs)
end)

G.export('once_counts', { 'allow-oom' }, function(q, r)
  local name, rows, calls = 'write-once:' .. r.write, 'r' .. r.sequence, 'p' .. r.sequence
  local found = G.pick(q.P .. name, 'batch', rows, calls)
  local last = tonumber(found.batch or '')
  if last and r.batch < last then return G.replies.once_counts({ state = 'over', counts = '' }) end
  if redis.call('PEXPIRE', q.P .. name, r.keep) == 1 then G.record_temporary(q, name, G.now(q), r.keep) end
  if last and r.batch > last then return G.replies.once_counts({ state = 'ok', counts = '' }) end
  return G.replies.once_counts({ state = found[calls] and 'unknown' or 'ok', counts = found[rows] or '' })
end)
