-- outbox: delete delivered entries and return pending entries for other queues.
-- KEYS 1 meta   ARGV 1 packed {holder, hold ms, cursor, delivered entry ids}   -> packed {held, entries, writes}
-- entry: {entry id, flat fields}   cursor: '' at first, then the last entry id. No entries = the end of the round.
-- writes: number of unfinished staged writes (stage_index.lua), for the maintenance task that completes abandoned ones.
-- held = 0: another holder has the lock, nothing was read (delivered entries are deleted anyway).
-- The lock only saves work: two holders would do no harm, since deliveries are idempotent. The end of a round releases
-- the lock in the same step, so that a later entry finds it free.
-- Bound: a page of entries, about PAGE_BYTES of them.

local OUTBOX_ENTRY = G.rows.outbox_entry
local PAGE, PAGE_BYTES, AT_A_TIME = 100, 1048576, 10

local function read(q, cursor)
  local entries, bytes, from = {}, 0, G.after(cursor)
  for _ = 1, PAGE / AT_A_TIME do
    if bytes >= PAGE_BYTES then break end
    local found = redis.call('XRANGE', q.outbox, from, '+', 'COUNT', AT_A_TIME)
    for _, entry in ipairs(found) do
      entries[#entries + 1] = entry
      for _, text in ipairs(entry[OUTBOX_ENTRY.fields]) do bytes = bytes + #text end
      if bytes >= PAGE_BYTES then break end
    end
    if #found < AT_A_TIME then break end
    from = '(' .. entries[#entries][OUTBOX_ENTRY.id]
  end
  return entries
end

G.export('outbox', { 'allow-oom' }, function(q, r)
  local holder, hold, cursor, delivered = r.holder, r.hold, r.cursor, r.delivered
  if #delivered > 0 then redis.call('XDEL', q.outbox, unpack(delivered)) end
  local lock_key, writes = q.lock_outbox, redis.call('ZCARD', q.writes)
  if cursor == '' and redis.call('XLEN', q.outbox) == 0 then
    redis.call('UNLINK', q.outbox) -- an empty stream would look like work
    return { held = 1, entries = {}, writes = writes }
  end
  if not G.holds(lock_key, holder, hold) then
    return { held = 0, entries = {}, writes = writes }
  end
  local entries = read(q, cursor)
  if #entries == 0 then
    G.unlock(lock_key, holder)
  else
    redis.call('PEXPIRE', lock_key, hold)
  end
  return { held = 1, entries = entries, writes = writes }
end)
