-- KEYS: lock. ARGV: owner, TTL in ms. Renews only what is the owner's.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
